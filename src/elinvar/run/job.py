"""What one attempt is asked to do, as one value that travels to every rank.

Nouns: `Job` and its `Outcome`. A job holds resolved values only: ranks need no file but the run
folder, the data and this.
"""

from msgspec import Struct

from elinvar.identity import Digest
from elinvar.spec.execution import Execution
from elinvar.spec.experiment import Experiment

COLLECTIVE_TIMEOUT_S = 600.0


class Source(Struct, frozen=True, kw_only=True):
    """Where a fork begins: the parent's generations folder, the step, and whose run it is."""

    generations: str
    step: int
    run: str
    experiment_digest: Digest


class Kill(Struct, frozen=True, kw_only=True):
    """For drills: rank `rank` sends itself SIGKILL when it is about to begin step `step`."""

    rank: int
    step: int


class Job(Struct, frozen=True, kw_only=True):
    """One attempt.

    `execution` is resolved and `ownership[rank]` its leaves; the run goes on to step `until`. `at`
    restores the generation of that step instead of the newest. `accept` allows to continue where
    only the math is the same. `wanted_ranks` is what the user wrote, for `resume`. `evaluates` is
    false where nobody reads the held-out loss.
    """

    folder: str
    attempt: int
    experiment: Experiment
    execution: Execution
    wanted_ranks: int | str
    ownership: tuple[tuple[int, ...], ...]
    until: int
    at: int | None = None
    accept: bool = False
    fork: Source | None = None
    planned_memory_bytes: int = 0
    machine: dict[str, object] = {}
    command: tuple[str, ...] = ()
    kill: Kill | None = None
    quiet: bool = False
    evaluates: bool = True
    timeout_s: float = COLLECTIVE_TIMEOUT_S


class Outcome(Struct, frozen=True, kw_only=True):
    """How an attempt ended: `reason` as in `record.attempt`, the last finished step, the step of the
    newest generation, and the update digest of the last state.
    """

    reason: str
    step: int
    saved_step: int
    update_digest: str
    message: str = ""
