"""What each step measured: the rows of `metrics.jsonl`.

Nouns: `MetricsRow`, `Evaluation`. (attempt, step) is unique; of a step that several attempts
computed the last attempt's row is the effective one, and the others are rewound, kept and shown.
A skipped step has nulls where it has no value; a row never holds a non-finite number.
"""

import math
from collections.abc import Iterable

from msgspec import Struct, field


class Evaluation(Struct, frozen=True, kw_only=True):
    """The model after the row's step on the fixed held-out samples; `loss` in nats per target token.

    `tokens` and `bytes` are the held-out target tokens and the UTF-8 bytes that they stand for;
    `bits_per_byte` = loss · tokens / (bytes · ln 2).
    """

    loss: float
    tokens: int
    bytes: int
    bits_per_byte: float

    def __post_init__(self) -> None:
        assert math.isfinite(self.loss), "an evaluation is finite"
        assert math.isfinite(self.bits_per_byte), "an evaluation is finite"


class MetricsRow(Struct, frozen=True, kw_only=True):
    """One step of one attempt.

    `loss` in nats per target token (None: not finite, or no target), `denominator` the step's sum
    of weights, `tokens` its target tokens, `grad_norm` before clipping (None: not finite), `lr` as
    used. `skipped`: parameters did not move. `update_digest` names the state after the step, where
    one was computed. `times` are seconds by phase, of the slowest rank or of rank 0 as `run` says;
    `peak_rss_bytes` is the largest resident set of any rank so far.
    """

    attempt: int
    step: int
    loss: float | None
    denominator: int
    tokens: int
    grad_norm: float | None
    lr: float
    skipped: bool = False
    update_digest: str | None = None
    evaluation: Evaluation | None = None
    times: dict[str, float] = field(default_factory=dict)
    peak_rss_bytes: int = 0
    step_time_s: float = 0.0
    tokens_per_s: float = 0.0

    def __post_init__(self) -> None:
        numbers = (
            self.loss,
            self.grad_norm,
            self.lr,
            self.step_time_s,
            self.tokens_per_s,
            *self.times.values(),
        )
        assert all(value is None or math.isfinite(value) for value in numbers), "a row holds finite numbers"


def effective(rows: Iterable[MetricsRow]) -> list[MetricsRow]:
    """Of each step the row of the last attempt that computed it, by step."""
    last: dict[int, MetricsRow] = {}
    for row in rows:
        if row.step not in last or row.attempt >= last[row.step].attempt:
            last[row.step] = row
    return [last[step] for step in sorted(last)]


def rewound(rows: Iterable[MetricsRow]) -> list[MetricsRow]:
    """The rows that a later attempt computed anew, by (attempt, step)."""
    rows = list(rows)
    kept = {(row.attempt, row.step) for row in effective(rows)}
    lost = {(row.attempt, row.step): row for row in rows if (row.attempt, row.step) not in kept}
    return [lost[place] for place in sorted(lost)]
