"""What a run folder says, put in order for a page: which rows lead to the present state, which do not.

Noun: `History`. It reads everything once and never writes; whatever is missing or damaged becomes
a notice that the page shows. It refuses only a folder that is no run.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from elinvar.errors import ElinvarError
from elinvar.record.attempt import COMPLETED, FAILED, INTERRUPTED, STOPPED, UNTIL, Attempt, kept_until
from elinvar.record.events import Event
from elinvar.record.folder import RunFolder
from elinvar.record.manifest import Generation, Incomplete, list_incomplete
from elinvar.record.metrics import MetricsRow, effective
from elinvar.record.proof import Proof, read_proof
from elinvar.spec.canonical import experiment_digest, math_digest
from elinvar.spec.experiment import Experiment

Tone = Literal["good", "busy", "calm", "warn", "bad"]

_ENDED: dict[str, tuple[str, Tone]] = {
    COMPLETED: ("completed", "good"),
    UNTIL: ("paused at its step", "calm"),
    STOPPED: ("stopped by request", "calm"),
    INTERRUPTED: ("interrupted", "calm"),
    FAILED: ("failed", "bad"),
}


@dataclass(frozen=True)
class History:
    """A run as its folder tells it.

    `rows` lead to the present state, one a step, in order; `behind` are the rows of each attempt
    that a later one left behind. `steps` is where the run is to end, `notices` what is wrong.
    """

    path: Path
    experiment: Experiment
    experiment_digest: str
    math_digest: str
    attempts: list[Attempt]
    rows: list[MetricsRow]
    behind: dict[int, list[MetricsRow]]
    events: list[Event]
    generations: list[Generation]
    incomplete: list[Incomplete]
    proof: Proof | None
    is_running: bool | None
    notices: list[str] = field(default_factory=list)

    @property
    def steps(self) -> int:
        """The step at which the run is complete."""
        planned = self.attempts[-1].start.plan.get("steps") if self.attempts else None
        return planned if isinstance(planned, int) else self.experiment.length.steps

    @property
    def step(self) -> int:
        """The last step of the present state that is known."""
        known = [row.step for row in self.rows[-1:]]
        if self.attempts:
            known.append(self.attempts[-1].from_step)
        return max(known, default=0)

    @property
    def state(self) -> tuple[str, Tone]:
        """What the run is doing, in a word or two, and how that sounds."""
        if self.is_running:
            return ("running" if self.rows else "starting"), "busy"
        if not self.attempts:
            return "created, never started", "calm"
        last = self.attempts[-1]
        if last.end is None:
            return ("running elsewhere, or killed" if self.is_running is None else "killed"), "warn"
        return _ENDED.get(last.reason, (last.reason, "calm"))


def read_history(path: Path) -> History:
    """Read the run folder at `path`. Raises InvalidInput where it is no sound run folder."""
    folder = RunFolder.open(path)
    experiment = folder.experiment()
    notices: list[str] = []
    attempts = folder.attempts()
    metrics, bad_metrics = folder.metrics()
    events, bad_events = folder.events()
    for name, bad in (("metrics.jsonl", bad_metrics), ("events.jsonl", bad_events)):
        if bad:
            lines = "1 line" if bad == 1 else f"{bad} lines"
            notices.append(f"{lines} of {name} could not be read and {'is' if bad == 1 else 'are'} left out.")
    if not metrics:
        notices.append("No step has been recorded yet: curves appear with the first one.")
    proof = None
    if folder.proof_path.exists():
        try:
            proof = read_proof(folder.proof_path)
        except ElinvarError as error:
            notices.append(f"The proof is left out: {error.message}.")
    writers = {str(event.data.get("name")): event.attempt for event in events if event.kind == "generation"}
    rows, behind = _split(metrics, kept_until(attempts, writers))
    return History(
        path=folder.path,
        experiment=experiment,
        experiment_digest=experiment_digest(experiment),
        math_digest=math_digest(experiment),
        attempts=attempts,
        rows=rows,
        behind=behind,
        events=events,
        generations=folder.generations(),
        incomplete=list_incomplete(folder.generations_path),
        proof=proof,
        is_running=folder.is_running,
        notices=notices,
    )


def _split(
    metrics: list[MetricsRow], limits: dict[int, int | None]
) -> tuple[list[MetricsRow], dict[int, list[MetricsRow]]]:
    """The rows that lead to the present state, by step, and the others of each attempt, by step."""
    in_line = []
    for row in metrics:
        limit = limits.get(row.attempt)
        if limit is None or row.step <= limit:
            in_line.append(row)
    rows = effective(in_line)
    kept = {(row.attempt, row.step) for row in rows}
    behind: dict[int, dict[int, MetricsRow]] = {}
    for row in metrics:
        if (row.attempt, row.step) not in kept:
            behind.setdefault(row.attempt, {})[row.step] = row
    return rows, {
        attempt: [by_step[step] for step in sorted(by_step)] for attempt, by_step in sorted(behind.items())
    }
