"""What ranks do in the tests of generations; imported by name in their processes."""

import errno
import os
from pathlib import Path

from elinvar.checkpoint.capture import capture
from elinvar.checkpoint.commit import commit
from elinvar.checkpoint.restore import candidates, restore
from elinvar.errors import StorageFailed
from experiments import rank_of

DIGESTS = {"experiment_digest": "ab" * 32, "math_digest": "cd" * 32, "fingerprint_digest": "ef" * 32}


def save(rank, folder, parent=None, **digests):
    """Commit the state of a rank, under digests that belong to no experiment where none are given."""
    snapshot = capture(rank.state, rank.replicas)
    return commit(snapshot, rank.replicas.world, Path(folder), **{**DIGESTS, **digests}, parent=parent)


def train_and_save(world, experiment, folder, sharding):
    """Two steps and a generation; the digest."""
    rank = rank_of(experiment, world, sharding=sharding)
    for _ in range(2):
        rank.take()
    return save(rank, folder).update_digest


def restore_and_go_on(world, experiment, folder):
    """One more step from the newest generation, on ZeRO-1; the digest after it."""
    rank = rank_of(experiment, world, sharding=1, ownership="round_robin")
    restore(rank.state, rank.replicas, candidates(Path(folder), None), rank.feed.store.digest)
    rank.take()
    return rank.digest


def rank_one_is_full(world, experiment, folder):
    """A generation, one that fails on rank 1 alone, and one more; the error that this rank saw."""
    rank = rank_of(experiment, world, sharding=1)
    rank.take()
    save(rank, folder)
    rank.take()
    real = os.write

    def full(fd, data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if world.rank == 1:
        os.write = full
    try:
        save(rank, folder)
        message = ""
    except StorageFailed as error:
        message = str(error)
    finally:
        os.write = real
    return message, save(rank, folder).step
