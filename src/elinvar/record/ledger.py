"""Which samples each step consumed: the rows of `ledger/steps.jsonl`, and the proof that none is missing.

Nouns: `LedgerRow` (what the ranks really consumed in a step, not what was planned), `Span` (a run
of positions), `Audit`. Positions count from 0 over the whole run, so that the ledger of a right
run covers [0, steps · sequences) once, whatever was killed, resumed or resized on the way.
"""

import sys
from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from blake3 import blake3
from msgspec import Struct

from elinvar.identity import Digest


class LedgerRow(Struct, frozen=True, kw_only=True):
    """One step of one attempt: `count` sequences from `position` on, the first of them in `epoch`.

    `ids_digest` is `ids_digest(indices)` of the sample indices in step order.
    """

    attempt: int
    step: int
    position: int
    count: int
    epoch: int
    ids_digest: Digest


class Span(NamedTuple):
    """Positions start ≤ p < stop."""

    start: int
    stop: int


class Audit(Struct, frozen=True, kw_only=True):
    """What the effective rows of steps 1..`num_steps` prove.

    `num_sequences` counts what those rows consumed. `skipped`, `repeated` and `beyond` are the
    positions that nobody consumed, that were consumed more than once, and that belong to no step
    up to `num_steps`; `wrong_steps` consumed other samples than the order gives (only looked for
    when the order was given).
    """

    num_steps: int
    num_sequences: int
    skipped: list[Span]
    repeated: list[Span]
    beyond: list[Span]
    wrong_steps: list[int]

    @property
    def ok(self) -> bool:
        """None skipped, none twice, none foreign."""
        return not (self.skipped or self.repeated or self.beyond or self.wrong_steps)


def ids_digest(indices: Iterable[int]) -> Digest:
    """BLAKE3 of the sample indices (0 ≤ index < 2⁶⁴) as little-endian 64-bit integers, in the order given."""
    packed = array("Q", indices)
    if sys.byteorder == "big":
        packed.byteswap()
    return Digest(blake3(packed.tobytes()).hexdigest())


def effective(rows: Iterable[LedgerRow]) -> list[LedgerRow]:
    """Of each step the row of the last attempt that computed it, by step."""
    last: dict[int, LedgerRow] = {}
    for row in rows:
        if row.step not in last or row.attempt >= last[row.step].attempt:
            last[row.step] = row
    return [last[step] for step in sorted(last)]


def audit(
    rows: Iterable[LedgerRow],
    until_step: int,
    sequences_per_step: int,
    indices: Callable[[int, int], Sequence[int]] | None = None,
) -> Audit:
    """Compare the effective rows of steps 1..`until_step` with the positions that those steps own.

    `indices(start, stop)` gives the sample indices of those positions by the order; with it each
    row's `ids_digest` is checked too. Rows past `until_step` are not looked at.
    """
    assert until_step >= 0
    assert sequences_per_step >= 1
    end = until_step * sequences_per_step
    chosen = [row for row in effective(rows) if 1 <= row.step <= until_step]
    skipped: list[Span] = []
    repeated: list[Span] = []
    reached = 0
    spans = sorted(Span(row.position, row.position + row.count) for row in chosen if row.count > 0)
    for start, stop in spans:
        if start > reached:
            skipped.append(Span(reached, min(start, end)))
        elif start < reached:
            repeated.append(Span(start, min(stop, reached)))
        reached = max(reached, stop)
    skipped.append(Span(reached, end))
    beyond = [Span(max(start, end), stop) for start, stop in spans if stop > end]
    return Audit(
        num_steps=until_step,
        num_sequences=sum(stop - start for start, stop in spans),
        skipped=_merged(skipped),
        repeated=_merged(repeated),
        beyond=_merged(beyond),
        wrong_steps=[] if indices is None else _wrong_steps(chosen, sequences_per_step, indices),
    )


def _wrong_steps(
    rows: list[LedgerRow], sequences_per_step: int, indices: Callable[[int, int], Sequence[int]]
) -> list[int]:
    wrong = []
    for row in rows:
        start = (row.step - 1) * sequences_per_step
        if row.ids_digest != ids_digest(indices(start, start + sequences_per_step)):
            wrong.append(row.step)
    return wrong


def _merged(spans: list[Span]) -> list[Span]:
    """The same positions as disjoint, non-empty spans in order."""
    merged: list[Span] = []
    for start, stop in sorted(spans):
        if start >= stop:
            continue
        if merged and start <= merged[-1].stop:
            merged[-1] = Span(merged[-1].start, max(stop, merged[-1].stop))
        else:
            merged.append(Span(start, stop))
    return merged
