"""Whole files: complete or absent, and a damaged or newer one is refused by name."""

import errno
import json
import os
from pathlib import Path

import pytest

from elinvar.errors import DoesNotFit, InvalidInput, StorageFailed
from elinvar.record.durable import place_failed, write_whole
from elinvar.record.lineage import Lineage, encode_lineage, read_lineage
from elinvar.record.proof import Case, Proof, read_proof, write_proof

A = "a" * 64


def proof(ok=True):
    case = Case(
        name="3 ranks", execution={"ranks": 3}, digests={10: A, 20: A}, relation="same bits", expected="same bits",
        tokens=40960, skipped=0, repeated=0, seconds=4.25, ok=ok,
    )  # fmt: skip
    return Proof(
        experiment_digest=A, math_digest=A, steps=20, claim="same bits", fingerprint={}, cases=[case], ok=ok
    )


def test_a_proof_comes_back_equal_and_replaces_the_older_one(tmp_path):
    path = tmp_path / "proof.json"
    write_proof(path, proof(ok=False))
    write_proof(path, proof())
    assert read_proof(path) == proof()
    assert [p.name for p in tmp_path.iterdir()] == ["proof.json"]


def test_a_missing_damaged_or_newer_proof_is_refused(tmp_path):
    path = tmp_path / "proof.json"
    with pytest.raises(InvalidInput, match="no such file"):
        read_proof(path)
    write_proof(path, proof())
    whole = path.read_bytes()
    path.write_bytes(whole[:100])
    with pytest.raises(InvalidInput, match=r"proof\.json is damaged"):
        read_proof(path)
    path.write_text(json.dumps({**json.loads(whole), "schema": 2}))
    with pytest.raises(InvalidInput, match="schema 2"):
        read_proof(path)


def test_a_lineage_comes_back_equal(tmp_path):
    path = tmp_path / "lineage.json"
    assert read_lineage(path) is None
    lineage = Lineage(
        run="/runs/a", step=40, generation="00000040-aaaaaaaaaaaa-00000001", experiment_digest=A
    )
    path.write_bytes(encode_lineage(lineage))
    assert read_lineage(path) == lineage
    path.write_text("{")
    with pytest.raises(InvalidInput, match="damaged"):
        read_lineage(path)


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "whole.json"
    write_whole(path, b"old")

    def full(fd, data):
        raise OSError(errno.ENOSPC, "No space left on device")

    for name in ("write", "fsync"):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, full if name == "write" else lambda fd: full(fd, b""))
            with pytest.raises(OSError, match="No space"):
                write_whole(path, b"new")
        assert path.read_bytes() == b"old"
        assert [p.name for p in tmp_path.iterdir()] == ["whole.json"]


def test_bytes_and_entry_are_durable_before_it_returns(tmp_path, monkeypatch):
    calls = []
    real_sync = os.fsync

    def record(fd):
        # The name under which the synced file is known tells whether it was synced before the rename.
        calls.append(Path(f"/proc/self/fd/{fd}").readlink().name)
        real_sync(fd)

    monkeypatch.setattr(os, "fsync", record)
    write_whole(tmp_path / "whole.json", b"x" * 100_000)
    assert len(calls) == 2
    assert calls[0].startswith(".whole.json.")
    assert calls[1] == tmp_path.name


@pytest.mark.parametrize(
    ("number", "kind", "code"),
    [
        (errno.EACCES, DoesNotFit, 3),
        (errno.EROFS, DoesNotFit, 3),
        (errno.ENOTDIR, InvalidInput, 2),
        (errno.ENAMETOOLONG, InvalidInput, 2),
        (errno.ENOSPC, StorageFailed, 1),
        (errno.EIO, StorageFailed, 1),
    ],
)
def test_what_a_disk_says_decides_the_exit_code(tmp_path, number, kind, code):
    error = place_failed(tmp_path / "x", OSError(number, os.strerror(number)))
    assert type(error) is kind
    assert error.exit_code == code
    assert str(tmp_path / "x") in error.message
