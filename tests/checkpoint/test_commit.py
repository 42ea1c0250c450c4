"""Capture, commit, restore: the same state again; and what a writer leaves that fails or dies anywhere."""

import errno
import os
import resource
import shutil
from contextlib import contextmanager

import checkpoint_work
import msgspec
import pytest
from checkpoint_work import save

from elinvar.checkpoint.capture import capture
from elinvar.checkpoint.check import check_generation
from elinvar.checkpoint.restore import candidates, restore
from elinvar.errors import StorageFailed
from elinvar.record.manifest import list_generations, list_incomplete, read_manifest
from experiments import on_ranks, rank_of, tensors_of


def restored(experiment, folder):
    rank = rank_of(experiment)
    return rank, restore(rank.state, rank.replicas, candidates(folder, None), rank.feed.store.digest)


def bits(rank):
    return [tensor.numpy().tobytes() for tensor in tensors_of(rank.state)]


def test_a_state_comes_back_as_it_was_and_goes_on_alike(experiment, rank, tmp_path):
    for _ in range(3):
        rank.take()
    generation = save(rank, tmp_path)
    other, found = restored(experiment, tmp_path)
    assert found.generation == generation
    assert found.rejected == ()
    assert found.state is other.state
    assert bits(other) == bits(rank)
    assert other.state.scalars == rank.state.scalars
    assert other.digest == rank.digest == generation.update_digest
    assert [rank.take().loss for _ in range(2)] == [other.take().loss for _ in range(2)]
    assert other.digest == rank.digest


def test_a_generation_says_what_it_is(experiment, rank, tmp_path):
    rank.take()
    parent = save(rank, tmp_path)
    rank.take()
    generation = save(rank, tmp_path, parent.name)
    assert generation.name.startswith(f"00000002-{rank.digest[:12]}-")
    assert (generation.step, generation.sequence) == (2, parent.sequence + 1)
    assert sorted(path.name for path in generation.path.iterdir()) == [
        "commit.json",
        "manifest.json",
        "rank-0.bin",
    ]
    manifest = read_manifest(generation)
    assert manifest.scalars == rank.state.scalars
    assert manifest.parent == parent.name
    assert manifest.dataset_digest == rank.feed.store.digest
    assert manifest.experiment_digest == "ab" * 32
    sizes = [piece.length for entry in manifest.tensors for piece in entry.pieces]
    assert sum(sizes) == (generation.path / "rank-0.bin").stat().st_size
    assert check_generation(generation) == []


def test_equal_states_have_equal_digests_and_their_own_folders(rank, tmp_path):
    rank.take()
    one, two = save(rank, tmp_path), save(rank, tmp_path)
    assert one.update_digest == two.update_digest
    assert one.name != two.name
    assert (one.path / "rank-0.bin").read_bytes() == (two.path / "rank-0.bin").read_bytes()


def test_the_newest_is_what_was_committed_last_whatever_its_step(experiment, rank, tmp_path):
    """As after going back to an older generation."""
    save(rank, tmp_path)
    again = rank_of(experiment)
    rank.take()
    save(rank, tmp_path)
    last = save(again, tmp_path)
    other, found = restored(experiment, tmp_path)
    assert found.generation == last
    assert [generation.step for generation in candidates(tmp_path, None)] == [0, 1, 0]
    assert candidates(tmp_path, 0)[0] == last
    assert other.state.step == 0


def test_capture_changes_nothing_not_even_before_the_first_step(experiment):
    alone, watched = rank_of(experiment), rank_of(experiment)
    snapshot = capture(watched.state, watched.replicas)
    assert bits(watched) == bits(alone)
    assert watched.take() == alone.take()
    assert watched.digest == alone.digest != snapshot.update_digest
    capture(watched.state, watched.replicas)
    assert watched.take() == alone.take()
    assert bits(watched) == bits(alone)


def test_a_snapshot_does_not_follow_the_state(rank):
    snapshot = capture(rank.state, rank.replicas)
    before = [share.data.tobytes() for share in snapshot.shares]
    rank.take()
    assert [share.data.tobytes() for share in snapshot.shares] == before
    assert snapshot.step == 0


# ---- a disk that refuses


@contextmanager
def file_size_limit(num_bytes):
    """The kernel itself refuses to let any file of this process grow further."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def refused(rank, folder, older):
    with pytest.raises(StorageFailed, match="the checkpoint was not written") as caught:
        save(rank, folder)
    assert list_generations(folder) == [older]
    assert [path.name for path in folder.iterdir()] == [older.name]
    assert check_generation(older) == []
    return str(caught.value)


@pytest.mark.parametrize("num_bytes", [0, 1000, 20000])
def test_a_file_that_may_not_grow_leaves_the_older_generation_newest(rank, tmp_path, num_bytes):
    older = save(rank, tmp_path)
    rank.take()
    with file_size_limit(num_bytes):
        message = refused(rank, tmp_path, older)
    assert "rank-0.bin" in message
    assert "free space on" in message
    assert save(rank, tmp_path).step == 1


@pytest.mark.parametrize("written", [0, 1, 2])
def test_a_full_disk_leaves_the_older_generation_newest(rank, tmp_path, monkeypatch, written):
    """`written` writes succeed, then none: the payload, the manifest or the commit record meets the end."""
    older = save(rank, tmp_path)
    rank.take()
    num_shares = len(capture(rank.state, rank.replicas).shares)
    left = [(0, num_shares, num_shares + 1)[written]]
    real = os.write

    def write(fd, data):
        if left[0] == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        left[0] -= 1
        return real(fd, data)

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write)
        message = refused(rank, tmp_path, older)
    assert "No space left on device" in message
    assert (written == 0) == ("rank-0.bin" in message)


def test_short_writes_are_finished(rank, tmp_path, monkeypatch):
    rank.take()
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, data[:701]))
    assert check_generation(save(rank, tmp_path)) == []


# ---- a writer that dies


class Killed(BaseException):
    """The process is gone at this operation."""


OPERATIONS = ("mkdir", "open", "write", "fsync", "rename", "link", "unlink", "rmdir")


def test_a_writer_killed_at_any_operation_leaves_all_or_nothing(experiment, rank, tmp_path, monkeypatch):
    """Every operation on the file system fails once, and every one after it, as after a SIGKILL."""
    rank.take()
    first = save(rank, tmp_path / "reference")
    rank.take()
    at, num_new = 0, 0
    while True:
        folder = tmp_path / str(at)
        shutil.copytree(first.path.parent, folder)
        count = [0]

        def dying(real, at=at, count=count):
            def operation(*arguments, **more):
                if count[0] >= at:
                    raise Killed
                count[0] += 1
                return real(*arguments, **more)

            return operation

        with monkeypatch.context() as patch:
            for name in OPERATIONS:
                patch.setattr(os, name, dying(getattr(os, name)))
            try:
                save(rank, folder)
                died = False
            except Killed:
                died = True
        found = list_generations(folder)
        assert [generation.step for generation in found] in ([1], [1, 2])
        assert all(check_generation(generation) == [] for generation in found)
        num_new += len(found) == 2
        if not died:
            break
        assert len(found) + len(list_incomplete(folder)) == len(list(folder.iterdir()))
        at += 1
    assert at > 20
    assert 1 <= num_new <= 4  # only past the link of the commit record


# ---- several ranks


def test_one_rank_that_cannot_write_fails_all_of_them(experiment, tmp_path):
    answers = on_ranks(3, checkpoint_work.rank_one_is_full, experiment, str(tmp_path))
    assert [message for message, _ in answers] == [answers[0][0]] * 3
    assert "rank 1: cannot write" in answers[0][0]
    assert "No space left" in answers[0][0]
    assert [generation.step for generation in list_generations(tmp_path)] == [1, 2]
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("sharding", [0, 1])
def test_a_generation_of_three_ranks_is_that_of_one(experiment, rank, tmp_path, sharding):
    """The same digest, one file a rank, and restored on one rank as on two with ZeRO-1."""
    digests = on_ranks(3, checkpoint_work.train_and_save, experiment, str(tmp_path / "three"), sharding)
    for _ in range(2):
        rank.take()
    (generation,) = list_generations(tmp_path / "three")
    assert digests == [rank.digest] * 3
    assert generation.update_digest == rank.digest == save(rank, tmp_path / "one").update_digest
    assert check_generation(generation) == []
    assert sorted(path.name for path in generation.path.glob("*.bin")) == [f"rank-{r}.bin" for r in range(3)]
    one = msgspec.to_builtins(read_manifest(list_generations(tmp_path / "one")[0]).tensors)
    three = msgspec.to_builtins(read_manifest(generation).tensors)
    for a, b in zip(one, three, strict=True):
        assert {k: v for k, v in a.items() if k != "pieces"} == {k: v for k, v in b.items() if k != "pieces"}
    other, _ = restored(experiment, tmp_path / "three")
    assert bits(other) == bits(rank)
    rank.take()
    assert (
        on_ranks(2, checkpoint_work.restore_and_go_on, experiment, str(tmp_path / "three"))
        == [rank.digest] * 2
    )
