"""Damage of any byte is found, said, and survived by the older generation; retention keeps sound copies."""

import errno
import os
import shutil

import msgspec
import pytest
import torch
from checkpoint_work import save

from elinvar.checkpoint.check import check_generation
from elinvar.checkpoint.payload import is_sound
from elinvar.checkpoint.restore import candidates, load_parameters, restore
from elinvar.checkpoint.retain import retain
from elinvar.errors import InvalidInput, RunFailed, StorageFailed
from elinvar.record import manifest as record
from elinvar.record.folder import RunFolder
from elinvar.record.manifest import list_generations, read_manifest
from elinvar.spec.canonical import math_digest
from elinvar.spec.read import experiment_json
from experiments import rank_of, small_experiment, tensors_of


@pytest.fixture(scope="module")
def two(tmp_path_factory, experiment):
    """A run folder with generations at steps 1 and 2, and the tensors of both states."""
    folder = RunFolder.create(tmp_path_factory.mktemp("two") / "run", experiment_json(experiment))
    rank, states = rank_of(experiment), []
    for _ in range(2):
        rank.take()
        save(rank, folder.generations_path, math_digest=math_digest(experiment))
        states.append(tensors_of(rank.state))
    return folder, states


@pytest.fixture
def damaged(two, tmp_path):
    """A copy to damage, its older and its newer generation."""
    shutil.copytree(two[0].path, tmp_path / "run")
    folder = RunFolder.open(tmp_path / "run")
    return folder, *list_generations(folder.generations_path)


def restored(experiment, folder):
    rank = rank_of(experiment)
    found = restore(
        rank.state, rank.replicas, candidates(folder.generations_path, None), rank.feed.store.digest
    )
    return rank, found


def flip(path, place, bit=0):
    data = bytearray(path.read_bytes())
    data[place] ^= 1 << bit
    path.write_bytes(data)


def payload(change):
    return lambda older, newer: change(newer.path / "rank-0.bin")


def of_file(name, change):
    return lambda older, newer: change(newer.path / name)


def rewritten(change):
    """A manifest that is well formed and named by its commit, but does not say what was written."""

    def damage(older, newer):
        manifest = msgspec.to_builtins(read_manifest(newer))
        change(manifest)
        data = record.encode_manifest(msgspec.convert(manifest, record.Manifest))
        (newer.path / record.MANIFEST).write_bytes(data)
        commit = msgspec.json.decode((newer.path / record.COMMIT).read_bytes(), type=record.Commit)
        commit = msgspec.structs.replace(commit, manifest_digest=record.manifest_digest(data))
        (newer.path / record.COMMIT).write_bytes(record.encode_commit(commit))

    return damage


def swapped_pieces(manifest):
    """Both tensors have equal shapes, and each hash is that of its bytes: only the digest can tell."""
    by_name = {entry["name"]: entry for entry in manifest["tensors"]}
    q, o = (by_name[f"parameter/layers.0.attention.{name}.weight"] for name in ("q", "o"))
    q["pieces"], o["pieces"] = o["pieces"], q["pieces"]


# What is damaged, the part of the reason that a user is told, and whether the commit still exists.
DAMAGES = {
    "first payload byte": (payload(lambda p: flip(p, 0)), "the bytes in rank-0.bin"),
    "last payload byte": (payload(lambda p: flip(p, -1, 7)), "the bytes in rank-0.bin"),
    "a byte inside": (payload(lambda p: flip(p, 12345, 3)), "the bytes in rank-0.bin"),
    "payload cut": (payload(lambda p: os.truncate(p, p.stat().st_size - 1)), "the bytes in rank-0.bin"),
    "payload empty": (payload(lambda p: os.truncate(p, 0)), "the bytes in rank-0.bin"),
    "payload missing": (payload(lambda p: p.unlink()), "cannot read"),
    "payload of another generation": (
        lambda older, newer: shutil.copy(older.path / "rank-0.bin", newer.path / "rank-0.bin"),
        "the bytes in rank-0.bin",
    ),
    "manifest byte": (of_file("manifest.json", lambda p: flip(p, 100)), "is damaged"),
    "manifest cut": (of_file("manifest.json", lambda p: os.truncate(p, 500)), "is damaged"),
    "manifest missing": (of_file("manifest.json", lambda p: p.unlink()), "has lost its manifest.json"),
    "manifest of another generation": (
        lambda older, newer: shutil.copy(older.path / "manifest.json", newer.path / "manifest.json"),
        "is damaged",
    ),
    "tensors swapped": (rewritten(swapped_pieces), "digest"),
    "another optimizer step": (rewritten(lambda m: m["scalars"].update(optimizer_steps=7)), "digest"),
    "another cursor": (rewritten(lambda m: m["scalars"].update(cursor_position=0)), "digest"),
    "a tensor less": (rewritten(lambda m: m["tensors"].pop()), ""),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_generation_is_passed_over_with_its_reason(experiment, two, damaged, damage):
    folder, older, newer = damaged
    inflict, reason = DAMAGES[damage]
    inflict(older, newer)
    rank, found = restored(experiment, folder)
    assert found.generation.name == older.name
    assert all(torch.equal(a, b) for a, b in zip(tensors_of(rank.state), two[1][0], strict=True))
    assert (rank.state.step, rank.state.cursor) == (1, rank.feed.cursor_after(1))
    (why,) = found.rejected
    assert newer.name in why
    assert reason in why


@pytest.mark.parametrize("damage", DAMAGES)
def test_check_finds_it(damaged, damage):
    _, older, newer = damaged
    DAMAGES[damage][0](older, newer)
    (changed,) = (g for g in list_generations(older.path.parent) if g.name == newer.name)
    problems = check_generation(changed)
    assert problems
    assert all(newer.name in problem for problem in problems)
    assert check_generation(older) == []


@pytest.mark.parametrize("place", [0, 20, -3])
def test_a_damaged_commit_record_is_no_generation(experiment, damaged, place):
    folder, older, newer = damaged
    flip(newer.path / "commit.json", place)
    rank, found = restored(experiment, folder)
    assert found.generation.name in (older.name, newer.name)
    if found.generation.name == older.name:
        assert rank.state.step == 1
    else:  # a digit of a time: the state is what it was
        assert rank.digest == newer.update_digest


def test_no_bit_of_a_commit_record_can_make_another_state(experiment, damaged):
    """Flip each bit: the generation is gone, rejected, or restored exactly."""
    folder, older, newer = damaged
    path = newer.path / "commit.json"
    whole = path.read_bytes()
    for place in range(0, len(whole), 7):
        flip(path, place, place % 8)
        try:
            rank, found = restored(experiment, folder)
        except InvalidInput as error:  # "schema" may have become a larger number
            assert "schema" in str(error)
        else:
            expected = older if found.generation.step == 1 else newer
            assert rank.digest == expected.update_digest
            assert rank.state.step == expected.step
        path.write_bytes(whole)


def test_every_damaged_byte_of_the_payload_is_found(damaged):
    _, _, newer = damaged
    path = newer.path / "rank-0.bin"
    size = path.stat().st_size
    for place in range(0, size, size // 25):
        flip(path, place, place % 8)
        assert len(check_generation(newer)) == 1
        flip(path, place, place % 8)
    assert check_generation(newer) == []


def test_nothing_sound_is_an_error_that_lists_every_reason(experiment, damaged):
    folder, older, newer = damaged
    flip(older.path / "rank-0.bin", 5)
    (newer.path / "manifest.json").unlink()
    with pytest.raises(RunFailed, match="no generation of this run can be restored") as caught:
        restored(experiment, folder)
    assert [line.split(":")[0] for line in caught.value.lines] == [newer.name, older.name]


def test_another_model_is_refused(damaged, tmp_path_factory):
    other = small_experiment(tmp_path_factory.mktemp("other"), hidden=32)
    with pytest.raises(RunFailed) as caught:
        restored(other, damaged[0])
    assert "the model has float32 [257, 32]" in str(caught.value)


def test_other_data_are_refused(experiment, damaged):
    folder, _, newer = damaged
    rank = rank_of(experiment)
    with pytest.raises(InvalidInput, match="the tokenized data set is not the one") as caught:
        restore(rank.state, rank.replicas, candidates(folder.generations_path, None), "12" * 32)
    assert newer.name in str(caught.value)


def test_a_step_without_a_generation_is_told_with_those_there_are(damaged):
    folder, older, _ = damaged
    assert candidates(folder.generations_path, 1) == [older]
    with pytest.raises(InvalidInput, match="no generation at step 7") as caught:
        candidates(folder.generations_path, 7)
    assert "1, 2" in str(caught.value)


def test_a_damaged_commit_of_a_newer_step_is_passed_over_with_its_reason(experiment, damaged):
    folder, older, newer = damaged
    os.truncate(newer.path / "commit.json", 40)
    (folder.generations_path / "00000009-0123456789ab-01234567").mkdir()  # never committed: no damage
    _, found = restored(experiment, folder)
    assert found.generation == older
    assert [line.split(":")[0] for line in found.rejected] == [newer.name]
    assert "commit.json is damaged" in found.rejected[0]
    assert load_parameters(folder).rejected == found.rejected
    with pytest.raises(InvalidInput, match="no generation at step 2") as caught:
        candidates(folder.generations_path, 2)
    assert "commit.json is damaged" in str(caught.value)
    os.truncate(older.path / "commit.json", 40)
    with pytest.raises(RunFailed, match="no generation of this run can be restored"):
        restored(experiment, folder)


def test_a_damaged_commit_of_an_older_step_is_no_news(experiment, damaged):
    folder, older, newer = damaged
    os.truncate(older.path / "commit.json", 40)
    _, found = restored(experiment, folder)
    assert (found.generation, found.rejected) == (newer, ())


def test_a_generation_of_another_experiment_is_passed_over(experiment, damaged):
    """Same model, same data, another seed: only the digests tell."""
    folder, _, newer = damaged
    own = math_digest(experiment)
    rank = rank_of(experiment)
    for _ in range(3):
        rank.take()
    foreign = save(rank, folder.generations_path, math_digest="12" * 32)
    same = rank_of(experiment)
    tried = candidates(folder.generations_path, None)
    found = restore(same.state, same.replicas, tried, same.feed.store.digest, own)
    assert found.generation == newer
    assert found.rejected == (
        f"{foreign.name}: belongs to another experiment: its math digest is {'12' * 6}, this run's is {own[:12]}",
    )
    assert load_parameters(folder).rejected == found.rejected
    assert load_parameters(folder).step == 2
    assert check_generation(newer, own) == []
    assert check_generation(foreign) == []  # whole in itself
    assert check_generation(foreign, own) == [found.rejected[0]]
    assert (is_sound(newer, own), is_sound(foreign), is_sound(foreign, own)) == (True, True, False)


# ---- parameters alone


def test_parameters_are_loaded_by_name(two, damaged):
    folder, older, newer = damaged
    names = [e.name.removeprefix("parameter/") for e in read_manifest(newer).tensors if e.kind == "parameter"]
    for step, states in ((None, two[1][1]), (2, two[1][1]), (1, two[1][0])):
        loaded = load_parameters(folder, step)
        assert loaded.step == (step or 2)
        assert loaded.rejected == ()
        assert list(loaded.parameters) == names
        assert all(torch.equal(a, b) for a, b in zip(loaded.parameters.values(), states, strict=False))
    flip(newer.path / "rank-0.bin", 0)  # of the first parameter
    passed_over = load_parameters(folder)
    assert passed_over.step == 1
    assert newer.name in passed_over.rejected[0]
    with pytest.raises(InvalidInput, match=r"no generation .* can be read"):
        load_parameters(folder, 2)
    flip(older.path / "rank-0.bin", 0)
    with pytest.raises(InvalidInput, match=r"no generation .* can be read") as caught:
        load_parameters(folder)
    assert len(caught.value.lines) == 2


def test_a_run_without_generations_has_no_parameters(experiment, tmp_path):
    folder = RunFolder.create(tmp_path / "run", experiment_json(experiment))
    with pytest.raises(InvalidInput, match="has no generation yet"):
        load_parameters(folder)


# ---- retention


@pytest.fixture
def six(experiment, tmp_path):
    """Generations at steps 0 to 5."""
    rank = rank_of(experiment)
    found = []
    for step in range(6):
        if step:
            rank.take()
        found.append(save(rank, tmp_path))
    return found


def steps(path):
    return [generation.step for generation in list_generations(path)]


@pytest.mark.parametrize("keep", [2, 3, 10])
def test_the_newest_stay(six, tmp_path, keep):
    removed = retain(tmp_path, keep)
    assert steps(tmp_path) == list(range(6))[-keep:]
    assert [generation.step for generation in removed] == list(range(6))[:-keep]
    assert len(list(tmp_path.iterdir())) == min(keep, 6)
    assert all(check_generation(generation) == [] for generation in list_generations(tmp_path))
    assert retain(tmp_path, keep) == []


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: (path / "manifest.json").unlink(),
        lambda path: flip(path / "manifest.json", 50),
        lambda path: (path / "rank-0.bin").unlink(),
        lambda path: os.truncate(path / "rank-0.bin", 100),
    ],
)
def test_a_damaged_copy_counts_for_nothing_and_is_left_alone(six, tmp_path, damage):
    for newest in six[-2:]:
        damage(newest.path)
    retain(tmp_path, 2)
    assert steps(tmp_path) == [2, 3, 4, 5]  # two sound ones, and the damaged as they were
    assert [check_generation(generation) == [] for generation in list_generations(tmp_path)] == [
        True,
        True,
        False,
        False,
    ]


def test_fewer_than_two_is_no_retention(six, tmp_path):
    with pytest.raises(AssertionError):
        retain(tmp_path, 1)
    assert len(steps(tmp_path)) == 6


def test_the_commit_record_goes_first(six, tmp_path, monkeypatch):
    """Killed between, a half-removed generation is no generation."""

    def gone(path, *more, **others):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", gone)
        with pytest.raises(KeyboardInterrupt):
            retain(tmp_path, 5)
    assert steps(tmp_path) == [1, 2, 3, 4, 5]
    assert (six[0].path / "rank-0.bin").exists()
    assert len(record.list_incomplete(tmp_path)) == 1


def test_a_disk_that_refuses_is_said(six, tmp_path, monkeypatch):
    def refuse(path, *more, **others):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr(os, "unlink", refuse)
    with pytest.raises(StorageFailed, match="Read-only file system"):
        retain(tmp_path, 2)
