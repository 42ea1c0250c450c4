"""One launch of a run: what it was started with, and how it ended. The rows of `attempts.jsonl`.

Nouns: `AttemptStart` and `AttemptEnd` (rows), `Attempt` (both together). Attempts count from 1.
An attempt without an end row was killed, or still runs: the record alone cannot tell which, and
does not guess.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from elinvar.errors import InvalidInput
from elinvar.record.journal import read_journal

SCHEMA = 1
"""Schema of the journals that an attempt writes. Added keys do not raise it; changed meanings do."""

COMPLETED = "completed"
UNTIL = "until"
STOPPED = "stopped"
INTERRUPTED = "interrupted"
FAILED = "failed"


class AttemptStart(Struct, frozen=True, kw_only=True, tag_field="row", tag="start"):
    """Written and synced before the first step of an attempt.

    `time_s` is Unix time. `from_step` is the step of the state that was restored (0: fresh), and
    `parent_generation` the folder name of its generation. `execution` is resolved. `accepted` is
    "same math" where the user continued across a change of bits, else "", and
    `experiment` then holds the document of the experiment that went on (as experiment.json), where it
    is not the folder's. `plan` holds what was
    planned: `memory_bytes` (peak of the largest rank), `steps` (where the attempt would end).
    `command` is the command line, word by word.
    """

    attempt: int
    time_s: float
    from_step: int
    execution: dict[str, Any]
    machine: dict[str, Any]
    fingerprint: dict[str, Any]
    versions: dict[str, str]
    parent_generation: str | None = None
    command: list[str] = field(default_factory=list)
    accepted: str = ""
    experiment: dict[str, Any] | None = None
    plan: dict[str, Any] = field(default_factory=dict)
    schema: int = SCHEMA


class AttemptEnd(Struct, frozen=True, kw_only=True, tag_field="row", tag="end"):
    """The last row of an attempt that could still write: `to_step` is its last finished step.

    `reason`: completed (all steps) · until (--until reached) · stopped (SIGTERM) · interrupted
    (Ctrl-C) · failed (`message` says why).
    """

    attempt: int
    time_s: float
    to_step: int
    reason: str
    message: str = ""


AttemptRow = AttemptStart | AttemptEnd


class Attempt(Struct, frozen=True, kw_only=True):
    """One launch; `end` is None for one that was killed or still runs."""

    start: AttemptStart
    end: AttemptEnd | None = None

    @property
    def attempt(self) -> int:
        """Its number, from 1."""
        return self.start.attempt

    @property
    def from_step(self) -> int:
        """Step of the state that it began with."""
        return self.start.from_step

    @property
    def reason(self) -> str:
        """Why it ended, or "killed or running"."""
        return self.end.reason if self.end else "killed or running"


def read_attempts(path: Path) -> list[Attempt]:
    """The attempts of `attempts.jsonl` at `path` by number; an end whose start is unreadable is left out.

    Raises InvalidInput where an attempt wrote a newer schema.
    """
    rows: list[AttemptRow]
    rows, _ = read_journal(path, AttemptRow)
    starts: dict[int, AttemptStart] = {}
    ends: dict[int, AttemptEnd] = {}
    for row in rows:
        match row:
            case AttemptStart():
                if row.schema > SCHEMA:
                    raise InvalidInput(
                        f"{path}: attempt {row.attempt} wrote record schema {row.schema}, newer than {SCHEMA}",
                        ["read this folder with the version of Elinvar that wrote it, or a later one"],
                    )
                starts[row.attempt] = row
            case AttemptEnd():
                ends[row.attempt] = row
    return [Attempt(start=starts[number], end=ends.get(number)) for number in sorted(starts)]


class _Numbered(Struct):
    attempt: int


def next_attempt(*paths: Path) -> int:
    """The number of the next attempt: one more than any row of the journals at `paths` names.

    Every journal of a run counts: where `attempts.jsonl` is lost, the others still say which numbers
    are taken, and (attempt, step) goes on naming one row.
    """
    taken = 0
    for path in paths:
        rows: list[_Numbered]
        rows, _ = read_journal(path, _Numbered)
        taken = max(taken, max((row.attempt for row in rows), default=0))
    return 1 + taken


def kept_until(
    attempts: Iterable[Attempt], writers: Mapping[str, int] | None = None
) -> dict[int, int | None]:
    """Up to which step each attempt's rows lead to the present state; None: all of them, 0: none.

    Goes back from the last attempt to the one that wrote the generation which it restored, and so
    on: `writers` names the attempt of each generation (events of kind "generation" say it). Where
    the writer is not known, it is the attempt before.
    """
    by_number = {attempt.attempt: attempt for attempt in attempts}
    limits: dict[int, int | None] = dict.fromkeys(sorted(by_number), 0)
    number = max(by_number, default=0)
    limit: int | None = None
    while number in by_number:
        attempt = by_number[number]
        limits[number] = limit
        limit = attempt.from_step if limit is None else min(limit, attempt.from_step)
        writer = (writers or {}).get(attempt.start.parent_generation or "", 0)
        earlier = [other for other in by_number if other < number]
        number = writer if writer in earlier else max(earlier, default=0)
    return limits
