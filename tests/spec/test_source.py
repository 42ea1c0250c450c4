import lzma
import os
from importlib.resources import files

import pytest
from blake3 import blake3

from elinvar.errors import InvalidInput
from elinvar.spec.source import BUILTIN, content_digest


def refused(source):
    with pytest.raises(InvalidInput) as caught:
        content_digest(str(source))
    return str(caught.value)


def test_a_file_is_named_by_its_bytes(tmp_path):
    path = tmp_path / "a.txt"
    data = b"abc" * 3_000_000
    path.write_bytes(data)
    assert content_digest(str(path)) == blake3(data).hexdigest()


def test_a_store_is_named_by_its_manifest(tmp_path):
    (tmp_path / "manifest.json").write_text("{}")
    assert content_digest(str(tmp_path)) == blake3(b"{}").hexdigest()


def test_builtins_are_constants_of_what_is_packaged():
    assert list(BUILTIN) == ["builtin:shakespeare"]
    text = lzma.decompress((files("elinvar") / "data" / "shakespeare.txt.xz").read_bytes())
    assert content_digest("builtin:shakespeare") == blake3(text).hexdigest()


def test_what_is_no_source_is_refused(tmp_path):
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "corpus.txt").write_text("x")
    assert "is empty" in refused(tmp_path / "empty.txt")
    assert f"a file with a similar name exists: {tmp_path / 'corpus.txt'}" in refused(tmp_path / "corpsu.txt")
    # Endings do not make names similar; equal stems do.
    assert "similar" not in refused(tmp_path / "nope.txt")
    assert "corpus.txt" in refused(tmp_path / "corpus.jsonl")
    assert "does not exist" in refused(tmp_path / "no" / "such.txt")
    assert "a folder without manifest.json" in refused(tmp_path)
    assert "the nearest is builtin:shakespeare" in refused("builtin:shakespear")
    os.mkfifo(tmp_path / "pipe")
    assert "neither a file nor a folder" in refused(tmp_path / "pipe")


def test_an_unreadable_file_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "secret.txt"
    path.write_text("x")

    def denied(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.open", denied)
    assert "cannot be read: Permission denied" in refused(path)
