"""What happened besides steps: the rows of `events.jsonl`.

Noun: `Event`. `kind` says which, `data` holds its facts (JSON values; non-finite numbers become
null). An event is told once and never taken back.
"""

from typing import Any

from msgspec import Struct, field

KINDS = {
    "asked": "a run was asked for; data: execution, wanted_ranks, steps, until, command",
    "start": "an attempt began",
    "stop": "a stop was asked for, or the attempt ended; data: reason",
    "fault": "something failed; data: message, and rank where one is to blame",
    "retry": "something that failed is tried again; data: message",
    "skipped_step": "non-finite gradients or no target tokens; data: reason, samples (indices)",
    "sample_text": "what a step reads, as text; data: for_step, texts",
    "generation": "a generation was committed; data: name, update_digest, seconds, bytes",
    "retained": "an old generation was removed by retention; data: name",
    "discarded": "rows past a restored generation no longer count; data: from_step, to_step",
    "torn_line": "the last line of a journal was half written, and was closed; data: file, bytes",
    "evaluation": "the held-out loss was measured; data: loss, bits_per_byte",
}
"""Kinds that this version writes. Readers show kinds that they do not know as they are."""


class Event(Struct, frozen=True, kw_only=True):
    """`time_s` is Unix time; `step` the last finished step when it happened (None: no step yet)."""

    attempt: int
    time_s: float
    kind: str
    step: int | None = None
    data: dict[str, Any] = field(default_factory=dict)
