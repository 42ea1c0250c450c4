"""A generation exists when its commit says so, and its manifest is the one that the commit names."""

import errno
import json
import os
from pathlib import Path

import msgspec
import pytest
from blake3 import blake3

from elinvar.errors import InvalidInput, Mismatch
from elinvar.record.manifest import (
    Commit,
    Manifest,
    Piece,
    TensorEntry,
    decode_manifest,
    encode_commit,
    encode_manifest,
    generation_name,
    list_generations,
    list_incomplete,
    manifest_digest,
    next_sequence,
    read_manifest,
)

A, B = "a" * 64, "b" * 64


def piece(start, stop, file="rank-0.bin"):
    return Piece(file=file, offset=4 * start, length=4 * (stop - start), start=start, stop=stop, blake3=B)


def entry(*pieces, shape=(2, 3)):
    return TensorEntry(
        name="norm.weight",
        kind="parameter",
        dtype="float32",
        shape=list(shape),
        lanes="0" * 32,
        pieces=list(pieces),
    )


def manifest(step=7, tensors=None, **more):
    return Manifest(
        step=step, update_digest=A, experiment_digest=B, math_digest=B, dataset_digest=B, fingerprint_digest=B,
        tensors=[entry(piece(0, 6))] if tensors is None else tensors,
        scalars={"step": step, "beta": 0.1, "whole": 1.0, "none": None, "flag": True, "text": "é"}, **more,
    )  # fmt: skip


def put(root, step=7, sequence=1, nonce="00000001", value=None):
    folder = root / generation_name(step, A, nonce)
    folder.mkdir(parents=True)
    data = encode_manifest(value or manifest(step))
    (folder / "manifest.json").write_bytes(data)
    commit = Commit(
        step=step,
        update_digest=A,
        manifest_digest=blake3(data).hexdigest(),
        time_s=1.5,
        nonce=nonce,
        sequence=sequence,
    )
    (folder / "commit.json").write_bytes(encode_commit(commit))
    return folder


def test_canonical_bytes_do_not_depend_on_the_order_of_scalars(tmp_path):
    data = encode_manifest(manifest())
    value = manifest()
    turned = msgspec.structs.replace(value, scalars=dict(reversed(value.scalars.items())))
    assert encode_manifest(turned) == data
    assert decode_manifest(data, tmp_path) == value
    assert isinstance(decode_manifest(data, tmp_path).scalars["whole"], float)
    assert manifest_digest(data) == blake3(data).hexdigest()


def test_generations_are_ordered_by_their_commits_not_by_their_steps(tmp_path):
    # The run went back from step 30 to 10, and on to 20: the newest generation is of step 20.
    put(tmp_path, 10, 1, "00000001")
    put(tmp_path, 30, 2, "00000002")
    put(tmp_path, 20, 3, "00000003")
    found = list_generations(tmp_path)
    assert [(g.step, g.sequence) for g in found] == [(10, 1), (30, 2), (20, 3)]
    assert found[-1].name == "00000020-aaaaaaaaaaaa-00000003"
    assert next_sequence(found) == 4
    assert read_manifest(found[-1]) == manifest(20)
    assert list_incomplete(tmp_path) == []


def test_a_missing_folder_has_no_generations(tmp_path):
    assert list_generations(tmp_path / "none") == list_incomplete(tmp_path / "none") == []
    assert next_sequence([]) == 1


def test_what_is_no_generation_is_listed_with_its_reason(tmp_path):
    put(tmp_path, 1, 1, "00000001")
    (put(tmp_path, 2, 2, "00000002") / "commit.json").unlink()
    torn = put(tmp_path, 3, 3, "00000003") / "commit.json"
    torn.write_bytes(torn.read_bytes()[:40])
    put(tmp_path, 4, 4, "00000004").rename(tmp_path / "00000005-aaaaaaaaaaaa-00000005")
    (tmp_path / "a-file").write_text("")
    assert [g.step for g in list_generations(tmp_path)] == [1]
    reasons = [i.reason for i in list_incomplete(tmp_path)]
    assert len(reasons) == 3
    assert "never committed" in reasons[0]
    assert "damaged" in reasons[1]
    assert "belongs to 00000004-aaaaaaaaaaaa-00000004" in reasons[2]


def test_only_a_commit_that_is_there_is_damaged(tmp_path):
    put(tmp_path, 1, 1, "00000001")
    (put(tmp_path, 2, 2, "00000002") / "commit.json").unlink()
    folder = put(tmp_path, 3, 3, "00000003")
    (folder / "commit.json").write_bytes(b"{}")
    put(tmp_path, 4, 4, "00000004").rename(tmp_path / "backup")
    directory = put(tmp_path, 5, 5, "00000005") / "commit.json"
    directory.unlink()
    directory.mkdir()
    found = [(entry.step, entry.is_damaged) for entry in list_incomplete(tmp_path)]
    assert found == [(2, False), (3, True), (5, True), (None, True)]
    assert "cannot be read: Is a directory" in list_incomplete(tmp_path)[2].reason


@pytest.mark.parametrize("error", [errno.EIO, errno.EACCES])
def test_what_the_disk_does_not_give_is_damage(tmp_path, monkeypatch, error):
    put(tmp_path)
    [generation] = list_generations(tmp_path)

    def refuse(path):
        raise OSError(error, os.strerror(error), str(path))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    [entry] = list_incomplete(tmp_path)
    assert (entry.is_damaged, os.strerror(error) in entry.reason) == (True, True)
    assert list_generations(tmp_path) == []
    with pytest.raises(Mismatch, match=os.strerror(error)):
        read_manifest(generation)


def test_a_manifest_of_another_experiment_is_found(tmp_path):
    put(tmp_path)
    [generation] = list_generations(tmp_path)
    assert read_manifest(generation, B) == read_manifest(generation)
    with pytest.raises(Mismatch, match="belongs to another experiment"):
        read_manifest(generation, A)


def test_a_newer_commit_is_refused_rather_than_overlooked(tmp_path):
    file = put(tmp_path) / "commit.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "schema": 2}))
    with pytest.raises(InvalidInput, match="schema 2, newer than 1"):
        list_generations(tmp_path)


def test_any_changed_bit_of_a_manifest_is_found(tmp_path):
    file = put(tmp_path) / "manifest.json"
    [generation] = list_generations(tmp_path)
    whole = file.read_bytes()
    for place in range(0, len(whole), 7):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(Mismatch, match=r"manifest\.json"):
            read_manifest(generation)
    file.unlink()
    with pytest.raises(Mismatch, match="lost its"):
        read_manifest(generation)


def test_a_manifest_of_another_state_is_found(tmp_path):
    put(tmp_path, 7, value=manifest(8))
    with pytest.raises(Mismatch, match="is of step 8"):
        read_manifest(list_generations(tmp_path)[0])


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (entry(piece(0, 3), piece(4, 6)), "piece 4:6 follows element 3"),
        (entry(piece(0, 3), piece(2, 6)), "piece 2:6 follows element 3"),
        (entry(piece(0, 5)), "end at element 5 of 6"),
        (entry(piece(0, 7)), "end at element 7 of 6"),
        (entry(), "end at element 0 of 6"),
        (entry(piece(0, 6, file="../rank-0.bin")), "file"),
        (entry(piece(0, 6, file="/etc/passwd")), "file"),
        (entry(piece(0, 6, file="..")), "file"),
    ],
)
def test_pieces_tile_their_tensor_and_stay_in_their_folder(bad, why, tmp_path):
    with pytest.raises(Mismatch, match=why):
        decode_manifest(encode_manifest(manifest(tensors=[bad])), tmp_path)


def test_scalars_and_empty_tensors_are_tensors(tmp_path):
    tensors = [entry(piece(0, 1), shape=()), entry(shape=(0, 4)), entry(piece(0, 2), piece(2, 6))]
    assert decode_manifest(encode_manifest(manifest(tensors=tensors)), tmp_path).tensors == tensors
