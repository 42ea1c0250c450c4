"""This process is a rank: started by torchrun (or Slurm, by its variables), or the only one there is.

Rank 0 prepares the job and hands it to the others through the store that the launcher set up.
"""

import os
from collections.abc import Callable
from pathlib import Path

import msgspec
from torch.distributed import PrefixStore, rendezvous

from elinvar import errors
from elinvar.errors import ElinvarError, InvalidInput
from elinvar.run.early import StoppedEarly
from elinvar.run.job import Job, Outcome
from elinvar.run.prepare import Preparation
from elinvar.run.rank import run_rank
from elinvar.run.stop import SignalSource

JOB_KEY = "elinvar/job"


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
    store, _, _ = next(rendezvous("env://", rank, size))
    if rank == 0:
        try:
            preparation = prepare()
        except ElinvarError as error:
            store.set(JOB_KEY, msgspec.json.encode([type(error).__name__, error.message, error.lines]))
            raise
        store.set(JOB_KEY, b"null" if preparation.is_complete else msgspec.json.encode(preparation.job))
    text = store.get(JOB_KEY)
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


_VARIABLES = "a launcher sets RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT; torchrun does"


def _number(name: str) -> int:
    text = os.environ.get(name, "")
    if not text.isdigit():
        raise InvalidInput(f"{name} is {text!r} in the environment, not a number", [_VARIABLES])
    return int(text)
