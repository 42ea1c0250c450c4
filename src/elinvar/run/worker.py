"""A rank in a process of its own, below a launching parent on the same machine.

The parent decides when to stop, so a worker ignores the signals of a stop (a terminal or a scheduler
sends them to everybody); it dies with its parent (Linux), and it tells the parent through the store
why it failed, before its peers notice that it is gone.
"""

import ctypes
import os
import signal
import sys
import traceback
from collections.abc import Callable

import msgspec
from torch.distributed import PrefixStore, Store, TCPStore

from elinvar.data.worker import FOR_THE_PARENT
from elinvar.errors import EXIT_FAILED, ElinvarError
from elinvar.run.job import Job, Outcome
from elinvar.run.rank import run_rank
from elinvar.run.stop import StoreSource

ERROR_KEY = "elinvar/error"
_PR_SET_PDEATHSIG = 1


class Failure(msgspec.Struct):
    """Why a rank failed: our own errors by class name, others with their traceback."""

    rank: int
    kind: str
    message: str
    lines: tuple[str, ...] = ()


def work(job: Job, rank: int, size: int, host: str, port: int) -> Outcome:
    """The entry point of a launched rank; its return value reaches the parent."""
    return guarded(_run, job, rank, size, host, port)


def _run(job: Job, rank: int, size: int, store: Store) -> Outcome:
    return run_rank(
        job,
        rank=rank,
        size=size,
        local_rank=rank,
        store=PrefixStore("elinvar/group", store),
        source=StoreSource(store, rank),
    )


def guarded(
    run: Callable[[Job, int, int, Store], Outcome], job: Job, rank: int, size: int, host: str, port: int
) -> Outcome:
    """Call `run` with the parent's store; leave the process, the reason told, where it raises."""
    die_with_parent()
    for number in FOR_THE_PARENT:
        signal.signal(number, signal.SIG_IGN)
    store = TCPStore(host, port, is_master=False, wait_for_workers=False)
    try:
        return run(job, rank, size, store)
    except ElinvarError as error:
        failure = Failure(rank, type(error).__name__, error.message, error.lines)
    except Exception as error:  # noqa: BLE001  # the parent tells the user, whatever it was
        failure = Failure(
            rank, "", f"{type(error).__name__}: {error}", tuple(traceback.format_exc().splitlines())
        )
    # Only the first failure counts: the others are peers that lost this one.
    store.compare_set(ERROR_KEY, "", msgspec.json.encode(failure).decode())
    sys.stderr.flush()
    os._exit(EXIT_FAILED)


def die_with_parent() -> None:
    """Ask Linux to kill this process when its parent dies; elsewhere the lost store ends it."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
