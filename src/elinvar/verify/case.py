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

from elinvar.plan.ownership import Kind, owners
from elinvar.spec.execution import Checkpoint, Execution, Input, Record

Stage = Literal[0, 1]
Ownership = Literal["contiguous", "round_robin"]
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
    *,
    ownership: Ownership = "contiguous",
    saves: bool = False,
) -> Execution:
    """An execution that records a digest every `EVERY` steps, and `saves` a generation as often."""
    return Execution(
        ranks=ranks,
        sharding=sharding,
        ownership=ownership,
        input=Input(workers=workers),
        checkpoint=Checkpoint(every=EVERY if saves else 0),
        record=Record(digest_every=EVERY, evaluate_every=0),
    )


def name_of(execution: Execution, num_microbatches: int) -> str:
    """What a person calls it: ranks with their leaves, ZeRO stage, input workers."""
    ranks = execution.ranks
    assert isinstance(ranks, int)
    kind: Kind = "round_robin" if execution.ownership == "round_robin" else "contiguous"
    leaves = "+".join(str(len(own)) for own in owners(num_microbatches, ranks, kind))
    parts = [
        "1 rank" if ranks == 1 else f"{ranks} ranks ({leaves}{' in turn' if kind == 'round_robin' else ''})",
        f"ZeRO-{execution.sharding}",
        f"{execution.input.workers} workers" if execution.input.workers else "",
    ]
    return ", ".join(part for part in parts if part)


def default_cases(steps: int, num_microbatches: int) -> tuple[Case, ...]:
    """The reference, plain executions, and two killed runs, in whose lives ZeRO-1 is at work.

    Together 1 to 4 ranks meet both ZeRO stages, with and without input workers; `all_cases` has
    every combination.
    """
    chosen = (
        execution_of(1),
        execution_of(2),
        execution_of(3, 0, 3),
        execution_of(4, 0, ownership="round_robin"),
    )
    return (*(_case(execution, num_microbatches) for execution in chosen), *killed(steps, num_microbatches))


def all_cases(steps: int, num_microbatches: int) -> tuple[Case, ...]:
    """Every combination of 1-4 ranks, ZeRO 0 and 1, 0 and 3 input workers, then two kills."""
    grid = (
        execution_of(ranks, sharding, workers)
        for ranks, sharding, workers in product((1, 2, 3, 4), STAGES, (0, 3))
    )
    return (*(_case(execution, num_microbatches) for execution in grid), *killed(steps, num_microbatches))


def killed(steps: int, num_microbatches: int) -> tuple[Case, ...]:
    """Two runs whose last rank is killed off the save points, and which go on under another execution."""
    lives = zip(
        kill_points(steps),
        (
            (execution_of(2, 1, saves=True), execution_of(3, 1, saves=True)),
            (execution_of(4, 1, saves=True), execution_of(1, 1, 3, saves=True)),
        ),
        strict=True,
    )
    return tuple(
        Case(
            name=f"{name_of(before, num_microbatches)}, SIGKILL at step {step}, "
            f"then {name_of(after, num_microbatches)}",
            execution=before,
            killed_at=step,
            resumed=after,
        )
        for step, (before, after) in lives
    )


def _case(execution: Execution, num_microbatches: int) -> Case:
    return Case(name=name_of(execution, num_microbatches), execution=execution)


def given_cases(executions: Sequence[tuple[str, Execution]]) -> tuple[Case, ...]:
    """The reference, and the executions that the user named."""
    record = Record(digest_every=EVERY, evaluate_every=0)
    return (
        Case(name="1 rank, ZeRO-0", execution=execution_of(1)),
        *(Case(name=name, execution=replace(execution, record=record)) for name, execution in executions),
    )


def every_step(cases: tuple[Case, ...]) -> tuple[Case, ...]:
    """The same cases, the reference with a digest of each step: a run may have recorded any of them."""
    reference, *others = cases
    record = replace(reference.execution.record, digest_every=1)
    return (replace(reference, execution=replace(reference.execution, record=record)), *others)


def kill_points(steps: int) -> tuple[int, int]:
    """Two steps to be killed at, each past a save point where `steps` allows it."""
    return max(1, steps * 2 // 5), max(1, steps * 4 // 5 + 1)


CONTRASTS = (
    Contrast(name="torch DDP, 2 ranks, for contrast", kind="ddp", ranks=2),
    Contrast(name="a plain loop, for contrast", kind="naive", ranks=1),
)
