"""This process is a rank: started by torchrun (or Slurm, by its variables), or the only one there is.

Rank 0 prepares the job and hands it to the others through the store that the launcher set up.
"""

import datetime as dt
import os
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
from torch.distributed import PrefixStore, Store, rendezvous

from elinvar import errors
from elinvar.errors import ElinvarError, InvalidInput, RunFailed
from elinvar.run.early import StoppedEarly
from elinvar.run.job import COLLECTIVE_TIMEOUT_S, Job, Outcome
from elinvar.run.prepare import Preparation
from elinvar.run.rank import run_rank
from elinvar.run.stop import SignalSource

JOB_KEY = "elinvar/job"
MEET_S = 5.0
POLL_S = 0.05


def run_alone(preparation: Preparation) -> Outcome:
    """Run a job of one rank in this process."""
    source = SignalSource(preparation.folder.generations_path)
    return run_rank(preparation.job, rank=0, size=1, local_rank=0, store=None, source=source)


def run_attached(prepare: Callable[[], Preparation]) -> Outcome | None:
    """Run as the rank that the launcher's variables name; `prepare` is called on rank 0 alone.

    Returns the outcome, None where the run was complete already. Raises InvalidInput where the
    variables are incomplete, and on every rank what preparing raised on rank 0.
    """
    rank, size, local_rank = (_number(name) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    _number("MASTER_PORT")
    if "MASTER_ADDR" not in os.environ:
        raise InvalidInput("MASTER_ADDR is missing from the environment", [_VARIABLES])
    if rank >= size:
        raise InvalidInput(f"RANK is {rank}, but WORLD_SIZE is {size}", ["ranks are counted from 0"])
    store = _meet(rank, size)
    if rank == 0:
        try:
            preparation = prepare()
        except ElinvarError as error:
            store.set(JOB_KEY, _text([type(error).__name__, error.message, error.lines]))
            raise
        store.set(JOB_KEY, _text(None if preparation.is_complete else preparation.job))
    text = _awaited(store)
    if text.startswith(b"["):
        kind, message, lines = msgspec.json.decode(text)
        raise getattr(errors, kind, StoppedEarly)(message, lines)
    if text == b"null":
        return None
    job = msgspec.json.decode(text, type=Job)
    source = SignalSource(Path(job.folder) / "generations" if rank == 0 else None)
    return run_rank(
        job,
        rank=rank,
        size=size,
        local_rank=local_rank,
        store=PrefixStore("elinvar/group", store),
        source=source,
    )


def _text(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _awaited(store: Store) -> bytes:
    """What rank 0 prepared, or why it could not. Waits in Python, so that a stop is heard meanwhile."""
    try:
        while not store.check([JOB_KEY]):
            time.sleep(POLL_S)
        return bytes(store.get(JOB_KEY))
    except RuntimeError as error:
        raise RunFailed(f"rank 0 went away before the run began: {error}") from None


def _meet(rank: int, size: int) -> Store:
    """The launcher's store. Tried in short waits: inside one, PyTorch hears no signal.

    Raises RunFailed where the ranks do not meet in time.
    """
    deadline = time.monotonic() + COLLECTIVE_TIMEOUT_S
    while True:
        try:
            store: Store = next(rendezvous("env://", rank, size, timeout=dt.timedelta(seconds=MEET_S)))[0]
        except RuntimeError as error:
            if time.monotonic() > deadline:
                where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
                raise RunFailed(f"the {size} ranks did not meet at {where}: {error}") from None
            continue
        store.set_timeout(dt.timedelta(seconds=COLLECTIVE_TIMEOUT_S))
        return store


_VARIABLES = "a launcher sets RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT; torchrun does"


def _number(name: str) -> int:
    text = os.environ.get(name, "")
    if not text.isdigit():
        raise InvalidInput(f"{name} is {text!r} in the environment, not a number", [_VARIABLES])
    return int(text)
