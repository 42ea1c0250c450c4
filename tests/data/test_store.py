"""Stores: built once and whole, checked at every opening, the same digest wherever they lie."""

import os
import shutil
import signal
import subprocess
import sys
import time
import warnings
from itertools import chain
from pathlib import Path

import msgspec
import numpy as np
import pytest
from blake3 import blake3

from elinvar.data import build, cache, layout, store
from elinvar.data.inspect import check_store, ids_used
from elinvar.data.source import documents
from elinvar.data.store import DamagedCache, Store, create_store, open_store
from elinvar.errors import DoesNotFit, InvalidInput, Mismatch
from elinvar.spec.data import ByteLevelBpe, Bytes, Data
from elinvar.spec.source import content_digest


@pytest.fixture
def root(tmp_path):
    return tmp_path / "cache"


@pytest.mark.parametrize("tokenizer", [Bytes(), ByteLevelBpe(vocab_size=270)])
def test_a_store_holds_every_document_and_its_end(data, root, tokenizer):
    data = msgspec.structs.replace(data, tokenizer=tokenizer)
    opened = open_store(data, root)
    texts = list(documents(data))
    expected, starts = [], []
    for text in texts:
        starts.append(len(expected))
        expected += [*opened.tokenizer.encode(text), opened.tokenizer.end_of_document]
    assert opened.tokens.tolist() == expected
    assert opened.documents.tolist() == starts
    assert opened.num_documents == len(texts) == 9
    assert opened.num_bytes == sum(len(text.encode()) for text in texts)
    assert (opened.num_tokens, opened.manifest.dtype) == (len(expected), "uint16")
    assert [opened.document_at(position) for position in (starts[3] - 1, starts[3])] == [2, 3]
    assert ids_used(opened) == len(set(expected))
    check_store(opened)


def test_batches_and_pieces_change_nothing(data, root, monkeypatch):
    whole = open_store(data, root / "a")
    monkeypatch.setattr(build, "BATCH_CHARS", 10)
    monkeypatch.setattr("elinvar.data.source.PIECE_CHARS", 9)
    assert open_store(data, root / "b").digest == whole.digest


def test_windows_overlap_by_the_token_that_both_need(data, root):
    opened = open_store(data, root)
    tokens = opened.tokens.tolist()
    for length in (1, 7, 16):
        num_windows = opened.num_windows(length)
        assert num_windows == (len(tokens) - 1) // length
        targets = [opened.window(k, length)[1:].tolist() for k in range(num_windows)]
        assert list(chain(*targets)) == tokens[1 : num_windows * length + 1]
        assert [opened.window(k, length)[0] for k in range(num_windows)] == tokens[
            : num_windows * length : length
        ]
    assert opened.num_windows(len(tokens)) == 0
    assert opened.num_windows(len(tokens) - 1) == 1


def test_ids_past_16_bits_are_stored_in_32(data, root, monkeypatch):
    monkeypatch.setattr(layout, "dtype_for", lambda _size: "uint32")
    wide = open_store(data, root / "wide")
    monkeypatch.undo()
    narrow = open_store(data, root / "narrow")
    assert wide.tokens.dtype == np.dtype("<u4")
    assert wide.tokens.tolist() == narrow.tokens.tolist()
    assert (layout.dtype_for(65_536), layout.dtype_for(65_537)) == ("uint16", "uint32")


def test_the_digest_names_content_alone(data, root, tmp_path):
    here = open_store(data, root)
    elsewhere = tmp_path / "moved" / "renamed.jsonl"
    elsewhere.parent.mkdir()
    shutil.copy(data.source, elsewhere)
    assert (
        open_store(msgspec.structs.replace(data, source=str(elsewhere)), root / "other").digest == here.digest
    )
    as_text = Data(source=str(tmp_path / "b.txt"), tokenizer=Bytes())
    Path(as_text.source).write_text("Document 0", encoding="utf-8")
    other = open_store(as_text, root)
    assert other.digest != here.digest
    Path(as_text.source).write_text("Document 1", encoding="utf-8")
    assert open_store(as_text, root).digest != other.digest


def test_what_decides_the_content_decides_the_cache_entry(data, root):
    open_store(data, root)
    for changed in (
        {"tokenizer": ByteLevelBpe(vocab_size=258)},
        {"format": "text"},
        {"format": "text", "tokenizer": ByteLevelBpe(vocab_size=258)},
    ):
        open_store(msgspec.structs.replace(data, **changed), root)
    assert len(list((root / "stores").iterdir())) == 4
    for same in (
        {"held_out": 1},
        {"order": "sequential"},
        {"format": "jsonl"},
        {"digest": content_digest(data.source)},
    ):
        open_store(msgspec.structs.replace(data, **same), root)
    assert len(list((root / "stores").iterdir())) == 4


def test_an_entry_of_the_cache_needs_the_source_no_more(data, root):
    resolved = msgspec.structs.replace(data, digest=content_digest(data.source), format="jsonl")
    built = open_store(resolved, root)
    Path(data.source).unlink()
    assert open_store(resolved, root).digest == built.digest


def test_a_source_of_another_digest_is_never_built(data, root):
    wrong = msgspec.structs.replace(data, digest="0" * 64)
    with pytest.raises(InvalidInput, match="holds other data than the experiment names"):
        open_store(wrong, root)
    assert list((root / "stores").iterdir()) == []


def flip(path, at=3):
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(bytes(content))


FILES = [layout.TOKENS, layout.DOCUMENTS, layout.TOKENIZER, layout.ORIGIN, layout.MANIFEST]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_a_damaged_entry_of_the_cache_is_set_aside_said_and_built_again(data, root, name, damage):
    built = open_store(data, root)
    path = built.path / name
    if damage == "flip":
        flip(path)
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[:-3])
    else:
        path.unlink()
    with pytest.warns(DamagedCache, match="built again"):
        again = open_store(data, root)
    assert again.digest == built.digest
    entries = sorted(entry.name for entry in (root / "stores").iterdir())
    assert [entry.endswith(".damaged") for entry in entries] == [False, True]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        open_store(data, root)


REPLACING = """
import sys, warnings
from pathlib import Path
from elinvar.data.store import DamagedCache, open_store
from elinvar.spec.data import Bytes, Data
sys.stdin.readline()
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    print(open_store(Data(source=sys.argv[1], tokenizer=Bytes()), Path(sys.argv[2])).digest, len(said))
"""


def test_five_processes_replace_one_damaged_entry_once(data, root):
    built = open_store(data, root)
    flip(built.path / layout.TOKENS)
    command = [sys.executable, "-c", REPLACING, data.source, str(root)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    children = [subprocess.Popen(command, **pipes) for _ in range(5)]
    for child in children:
        child.stdin.write("\n")
        child.stdin.flush()
    said = [child.communicate()[0].split() for child in children]
    assert [child.returncode for child in children] == [0] * 5
    assert [words[0] for words in said] == [built.digest] * 5, said
    assert sorted(count for _, count in said) == ["0", "0", "0", "0", "1"]
    assert len(list((root / "stores").glob("*.damaged"))) == 1


def test_a_fresh_entry_that_was_seen_damaged_is_not_set_aside(data, root, monkeypatch):
    """Between the look without the lock and the lock another process replaces the entry."""
    built = open_store(data, root)
    flip(built.path / layout.TOKENS)
    real = cache.locked

    def late(*words):
        flip(built.path / layout.TOKENS)  # sound again
        return real(*words)

    monkeypatch.setattr(cache, "locked", late)
    assert open_store(data, root).digest == built.digest
    assert [entry.name for entry in (root / "stores").iterdir()] == [built.path.name]


def test_an_entry_that_vanishes_is_built_once_more(data, root, monkeypatch):
    open_store(data, root)
    real, times = cache.publish, []

    def vanish(target, build):
        won = real(target, build)
        times.append(won)
        if len(times) == 1:
            shutil.rmtree(target)
        return won

    monkeypatch.setattr(cache, "publish", vanish)
    [entry] = (root / "stores").iterdir()
    shutil.rmtree(entry)
    assert open_store(data, root).path == entry
    assert times == [True, True]


@pytest.mark.parametrize("name", FILES)
def test_a_damaged_store_of_the_user_is_a_mismatch(data, tmp_path, name):
    out = tmp_path / "out"
    create_store(data, out)
    named = Data(source=str(out), tokenizer=Bytes())
    open_store(named, tmp_path / "unused")
    flip(out / name, at=len((out / name).read_bytes()) // 2)
    with pytest.raises(Mismatch):
        open_store(named, tmp_path / "unused")
    (out / name).unlink()
    with pytest.raises((Mismatch, InvalidInput)):
        open_store(named, tmp_path / "unused")


def test_a_manifest_changed_with_its_checksum_is_still_caught(data, tmp_path):
    built = create_store(data, tmp_path / "out")
    for change in ({"num_bytes": built.num_bytes + 1}, {"digest": "0" * 64}):
        layout.write_manifest(built.path, msgspec.structs.replace(built.manifest, **change))
        with pytest.raises(Mismatch):
            check_store(Store.open(built.path))


def test_documents_that_begin_elsewhere_are_caught(data, tmp_path):
    built = create_store(data, tmp_path / "out")
    starts = built.documents.copy()
    starts[4] += 1
    (built.path / layout.DOCUMENTS).write_bytes(starts.tobytes())
    digest = blake3(starts.tobytes()).hexdigest()
    manifest = built.manifest
    layout.write_manifest(
        built.path,
        msgspec.structs.replace(
            manifest,
            documents_digest=digest,
            digest=layout.dataset_digest(manifest.tokens_digest, digest, manifest.tokenizer_digest),
        ),
    )
    with pytest.raises(Mismatch, match="does not say where the documents begin"):
        check_store(Store.open(built.path))


def test_a_folder_that_is_no_store_is_refused(tmp_path):
    (tmp_path / "run").mkdir()
    with pytest.raises(InvalidInput, match="is no data store"):
        Store.open(tmp_path / "run")
    (tmp_path / "run" / "manifest.json").write_text('{"step": 1}')
    with pytest.raises(InvalidInput, match="is of something else"):
        Store.open(tmp_path / "run")
    (tmp_path / "run" / "manifest.json").write_text('{"schema": 9, "checksum": ""}')
    with pytest.raises(InvalidInput, match="schema 9"):
        Store.open(tmp_path / "run")


def test_a_store_of_another_tokenizer_or_digest_is_refused(data, tmp_path):
    out = tmp_path / "out"
    create_store(data, out)
    with pytest.raises(InvalidInput, match="another tokenizer") as caught:
        open_store(Data(source=str(out), tokenizer=ByteLevelBpe(vocab_size=300)))
    assert 'experiment.data.tokenizer = {kind = "bpe", vocab_size = 300}' in caught.value.lines
    assert 'of the store              = {kind = "bytes"}' in caught.value.lines
    with pytest.raises(InvalidInput, match="is another one than the experiment names"):
        open_store(Data(source=str(out), tokenizer=Bytes(), digest="0" * 64))


def test_a_store_is_built_only_where_nothing_is(data, tmp_path):
    out = tmp_path / "deep" / "out"
    built = create_store(data, out)
    assert built.digest == open_store(data, tmp_path / "cache").digest
    with pytest.raises(InvalidInput, match="exists"):
        create_store(data, out)
    with pytest.raises(InvalidInput, match="is a folder"):
        create_store(Data(source=str(out), tokenizer=Bytes()), tmp_path / "again")
    Path(data.source).write_text("not json")
    with pytest.raises(InvalidInput, match="is no JSON"):
        create_store(data, tmp_path / "deep" / "bad")
    assert [entry.name for entry in (tmp_path / "deep").iterdir()] == ["out"]


def test_the_root_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("ELINVAR_CACHE", "/a/b")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert cache.cache_root() == Path("/a/b")
    monkeypatch.setenv("ELINVAR_CACHE", "here")
    monkeypatch.chdir(tmp_path)
    assert cache.cache_root() == tmp_path / "here"
    monkeypatch.delenv("ELINVAR_CACHE")
    assert cache.cache_root() == Path("/x/elinvar")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # the XDG rule: only absolute paths count
    monkeypatch.setenv("HOME", "/h")
    assert cache.cache_root() == Path("/h/.cache/elinvar")


def test_a_cache_that_cannot_be_written_is_named(data, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(DoesNotFit, match="cannot keep the tokens") as caught:
        open_store(data, tmp_path / "file" / "cache")
    assert "set ELINVAR_CACHE" in str(caught.value)

    def full(*_arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(layout, "write_manifest", full)
    with pytest.raises(DoesNotFit, match="No space left on device"):
        open_store(data, tmp_path / "cache")
    with pytest.raises(DoesNotFit, match="cannot build a store at"):
        create_store(data, tmp_path / "out")
    assert list((tmp_path / "cache" / "stores").iterdir()) == []
    assert not (tmp_path / "out").exists()
    assert not list(tmp_path.glob(".*"))


TOGETHER = """
import sys, time
from pathlib import Path
from elinvar.data.store import open_store
from elinvar.spec.data import ByteLevelBpe, Data
sys.stdin.readline()
print(open_store(Data(source=sys.argv[1], tokenizer=ByteLevelBpe(vocab_size=265)), Path(sys.argv[2])).digest)
"""


def test_concurrent_builders_agree_on_one_store(data, root):
    builders = [
        subprocess.Popen(
            [sys.executable, "-c", TOGETHER, data.source, str(root)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    for builder in builders:
        builder.stdin.write("\n")
        builder.stdin.flush()
    answers = [builder.communicate()[0] for builder in builders]
    assert [builder.returncode for builder in builders] == [0, 0, 0]
    assert len(set(answers)) == 1
    assert len(list((root / "stores").iterdir())) == 1


def test_the_loser_of_a_race_uses_the_winners_store(data, root, monkeypatch):
    original = store._build

    def late(data, folder):
        original(data, folder)
        monkeypatch.setattr(store, "_build", original)
        create_store(data, folder.parent / folder.name.split(".")[1])  # somebody without the lock is faster

    monkeypatch.setattr(store, "_build", late)
    opened = open_store(data, root)
    assert [entry.name for entry in (root / "stores").iterdir()] == [opened.path.name]


KILLED = """
import sys, time
from pathlib import Path
from elinvar.data import layout
from elinvar.data.store import open_store
from elinvar.spec.data import Bytes, Data
real = layout.write_manifest
def stop(folder, manifest):
    print("building", flush=True)
    time.sleep(60)
layout.write_manifest = stop
open_store(Data(source=sys.argv[1], tokenizer=Bytes()), Path(sys.argv[2]))
"""


@pytest.mark.drill
def test_a_killed_builder_leaves_nothing_that_anybody_trusts(data, root):
    child = subprocess.Popen(
        [sys.executable, "-c", KILLED, data.source, str(root)], stdout=subprocess.PIPE, text=True
    )
    with child:
        assert child.stdout.readline() == "building\n"
        living = [entry.name for entry in (root / "stores").iterdir()]
        other = msgspec.structs.replace(data, tokenizer=ByteLevelBpe(vocab_size=258))
        open_store(other, root)
        assert living[0] in [entry.name for entry in (root / "stores").iterdir()]  # its lock is held
        child.send_signal(signal.SIGKILL)
        child.wait()
    assert living[0].endswith(".building")
    opened = open_store(data, root)
    check_store(opened)
    assert living[0] not in [entry.name for entry in (root / "stores").iterdir()]


def test_a_leftover_without_a_lock_goes_when_it_is_old(root, data):
    (root / "stores").mkdir(parents=True)
    for name, age_s in ((".a.0000.building", 0), (".b.0000.building", 7200)):
        (root / "stores" / name).mkdir()
        os.utime(root / "stores" / name, (time.time() - age_s,) * 2)
    opened = open_store(data, root)
    assert {entry.name for entry in (root / "stores").iterdir()} == {".a.0000.building", opened.path.name}


def test_memory_does_not_grow_with_the_source(tmp_path):
    """A text of 60 MB in one document is tokenized within a few pieces' memory."""
    path = tmp_path / "large.txt"
    with path.open("w") as file:
        for _ in range(60):
            file.write("some words of text\n" * 55_000)
    script = (
        "import resource, sys; from pathlib import Path\n"
        "from elinvar.data.store import open_store; from elinvar.spec.data import Bytes, Data\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "open_store(Data(source=sys.argv[1], tokenizer=Bytes()), Path(sys.argv[2]))\n"
        "print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(path), str(tmp_path / "c")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(done.stdout) < 350  # MiB; includes the map of the 120 MB of tokens that are verified
