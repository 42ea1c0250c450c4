"""The executions that `verify` compares, and the runs that show what would happen without us.

Nouns: `Case` (an execution of ours, perhaps killed and resumed under another one) and `Contrast`
(how the field usually computes the same experiment). Cases are chosen to cover every rank count
from 1 to 4, both ZeRO stages, with and without input workers, and two kill points.
"""

from collections.abc import Sequence
from itertools import product
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from elinvar.spec.execution import Checkpoint, Execution, Input, Record

Stage = Literal[0, 1]
STAGES: tuple[Stage, ...] = (0, 1)

EVERY = 5
"""Steps between compared digests and between generations of a case."""


class Case(Struct, frozen=True, kw_only=True):
    """`execution` runs from step 0; with `killed_at`, its last rank is SIGKILLed when it is about
    to begin that step, and the run goes on under `resumed`.
    """

    name: str
    execution: Execution
    killed_at: int | None = None
    resumed: Execution | None = None


class Contrast(Struct, frozen=True, kw_only=True):
    """`kind`: `ddp` is torch DDP on `ranks` ranks with no_sync; `naive` is one process that adds up
    mean losses. Both use torch's own optimizer and clipping.
    """

    name: str
    kind: Literal["ddp", "naive"]
    ranks: int


def execution_of(
    ranks: int,
    sharding: Stage = 0,
    workers: int = 0,
    ownership: Literal["contiguous", "round_robin"] = "contiguous",
) -> Execution:
    """An execution that records a digest and saves a generation every `EVERY` steps."""
    return Execution(
        ranks=ranks,
        sharding=sharding,
        ownership=ownership,
        input=Input(workers=workers),
        checkpoint=Checkpoint(every=EVERY),
        record=Record(digest_every=EVERY, evaluate_every=0),
    )


def default_cases(steps: int) -> tuple[Case, ...]:
    """The reference first. Kill points lie past a third and two thirds of `steps`, off the save points."""
    first, second = kill_points(steps)
    return (
        Case(name="1 rank", execution=execution_of(1)),
        Case(name="2 ranks", execution=execution_of(2)),
        Case(name="3 ranks, ZeRO-1", execution=execution_of(3, 1)),
        Case(name="4 ranks, ZeRO-1, leaves in turn", execution=execution_of(4, 1, 0, "round_robin")),
        Case(name="2 ranks, ZeRO-1, 3 input workers", execution=execution_of(2, 1, 3)),
        Case(
            name=f"2 ranks, SIGKILL at step {first}, resumed on 3 with ZeRO-1",
            execution=execution_of(2),
            killed_at=first,
            resumed=execution_of(3, 1),
        ),
        Case(
            name=f"4 ranks with ZeRO-1, SIGKILL at step {second}, resumed on 1 with 3 workers",
            execution=execution_of(4, 1),
            killed_at=second,
            resumed=execution_of(1, 0, 3),
        ),
    )


def all_cases(steps: int) -> tuple[Case, ...]:
    """Every combination of 1-4 ranks, ZeRO 0 and 1, 0 and 3 input workers, then the killed runs."""
    grid = [
        Case(
            name=f"{ranks} rank{'s' * (ranks > 1)}, ZeRO-{sharding}, {workers} workers",
            execution=execution_of(ranks, sharding, workers),
        )
        for ranks, sharding, workers in product((1, 2, 3, 4), STAGES, (0, 3))
    ]
    return (*grid, *(case for case in default_cases(steps) if case.killed_at is not None))


def given_cases(executions: Sequence[tuple[str, Execution]]) -> tuple[Case, ...]:
    """The reference, and the executions that the user named."""
    record = Record(digest_every=EVERY, evaluate_every=0)
    return (
        Case(name="1 rank", execution=execution_of(1)),
        *(Case(name=name, execution=replace(execution, record=record)) for name, execution in executions),
    )


def kill_points(steps: int) -> tuple[int, int]:
    """Two steps to be killed at, each past a save point where `steps` allows it."""
    return max(1, steps * 2 // 5), max(1, steps * 4 // 5 + 1)


CONTRASTS = (
    Contrast(name="torch DDP, 2 ranks, for contrast", kind="ddp", ranks=2),
    Contrast(name="a plain loop, for contrast", kind="naive", ranks=1),
)
