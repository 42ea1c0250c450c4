"""Writing the record of one attempt: the only code that appends to a run's journals.

Nouns: `Recorder` (on rank 0) and `Silence` (on every other rank), two answers to one protocol, so
that the loop need not ask which rank it is on.
"""

import importlib.metadata
import json
import math
import platform
import time
from typing import Any, Protocol

import msgspec
import torch

from elinvar import __version__
from elinvar.data.feed import Feed
from elinvar.record.attempt import AttemptStart
from elinvar.record.events import Event
from elinvar.record.folder import RunFolder
from elinvar.record.ledger import LedgerRow, ids_digest
from elinvar.record.manifest import Generation
from elinvar.record.metrics import Evaluation, MetricsRow
from elinvar.run.assemble import Assembly
from elinvar.run.prepare import torn_note
from elinvar.run.progress import Progress
from elinvar.spec.canonical import experiment_digest
from elinvar.spec.read import experiment_json
from elinvar.train.update import StepReport


class Record(Protocol):
    """What the loop tells the record."""

    def step(
        self,
        report: StepReport,
        *,
        digest: str | None,
        evaluation: tuple[float, int] | None,
        times: dict[str, float],
        step_time_s: float,
        peak_rss_bytes: int,
    ) -> None:
        """A step is finished."""

    def sync(self) -> None:
        """Make everything told so far durable: called before a generation is committed."""

    def generation(self, generation: Generation, removed: list[Generation], seconds: float) -> None:
        """A generation was committed, and older ones were removed."""

    def event(self, kind: str, step: int | None, **data: Any) -> None:
        """Something else happened."""


class Silence:
    """A rank that keeps no record."""

    def step(
        self,
        report: StepReport,
        *,
        digest: str | None,
        evaluation: tuple[float, int] | None,
        times: dict[str, float],
        step_time_s: float,
        peak_rss_bytes: int,
    ) -> None:
        """See `Record.step`."""

    def sync(self) -> None:
        """See `Record.sync`."""

    def generation(self, generation: Generation, removed: list[Generation], seconds: float) -> None:
        """See `Record.generation`."""

    def event(self, kind: str, step: int | None, **data: Any) -> None:
        """See `Record.event`."""


class Recorder:
    """Rank 0's journals and progress line."""

    def __init__(self, assembly: Assembly) -> None:
        job = assembly.job
        self._attempt = job.attempt
        self._sequences = job.experiment.batch.sequences
        self._feed: Feed = assembly.feed
        self._held_out_bytes = sum(assembly.feed.num_bytes(leaf) for leaf in assembly.feed.held_out())
        self._journals = assembly.folder.journals()
        self._progress = Progress(assembly.state.step, job.until, quiet=job.quiet)
        for file, torn in self._journals.torn.items():
            self.event("torn_line", None, file=file, bytes=torn)
            self._progress.say(f"note   {torn_note(file, torn)}")
        for note in assembly.notes:
            self.event("fault", assembly.state.step, message=note)
            self._progress.say(f"note   passed over {note}")
        if assembly.restored is not None:
            self._progress.say(f"from   step {assembly.state.step}, generation {assembly.restored.name}")
        self._start(assembly)

    def step(
        self,
        report: StepReport,
        *,
        digest: str | None,
        evaluation: tuple[float, int] | None,
        times: dict[str, float],
        step_time_s: float,
        peak_rss_bytes: int,
    ) -> None:
        """See `Record.step`: ledger first, then metrics, then the progress line."""
        samples = [index for leaf in report.samples for index in leaf]
        position = (report.step - 1) * self._sequences
        self._journals.ledger.append(
            LedgerRow(
                attempt=self._attempt,
                step=report.step,
                position=position,
                count=len(samples),
                epoch=self._feed.order.sample(position).epoch,
                ids_digest=ids_digest(samples),
            )
        )
        if report.skipped:
            self.event("skipped_step", report.step, reason=report.skipped, samples=samples)
        measured = self._evaluation(evaluation)
        if measured is not None:
            self.event("evaluation", report.step, loss=measured.loss, bits_per_byte=measured.bits_per_byte)
        rate = report.denominator / step_time_s if step_time_s > 0 else 0.0
        self._journals.metrics.append(
            MetricsRow(
                attempt=self._attempt,
                step=report.step,
                loss=report.loss,
                denominator=report.denominator,
                tokens=report.denominator,
                grad_norm=report.grad_norm,
                lr=report.lr,
                skipped=bool(report.skipped),
                update_digest=digest,
                evaluation=measured,
                times={name: round(seconds, 6) for name, seconds in times.items()},
                peak_rss_bytes=peak_rss_bytes,
                step_time_s=round(step_time_s, 6),
                tokens_per_s=round(rate, 3),
            )
        )
        self._progress.step(
            report.step,
            loss=report.loss,
            evaluation=measured.loss if measured else None,
            grad_norm=report.grad_norm,
            lr=report.lr,
            tokens_per_s=rate,
            waiting=times.get("input", 0.0) / step_time_s if step_time_s > 0 else 0.0,
            skipped=bool(report.skipped),
        )

    def sync(self) -> None:
        """See `Record.sync`."""
        self._journals.sync()

    def generation(self, generation: Generation, removed: list[Generation], seconds: float) -> None:
        """See `Record.generation`."""
        size = sum(file.stat().st_size for file in generation.path.iterdir())
        self.event(
            "generation",
            generation.step,
            name=generation.name,
            update_digest=generation.update_digest,
            seconds=round(seconds, 6),
            bytes=size,
        )
        for old in removed:
            self.event("retained", generation.step, name=old.name)

    def event(self, kind: str, step: int | None, **data: Any) -> None:
        """See `Record.event`."""
        self._journals.events.append(
            Event(attempt=self._attempt, time_s=time.time(), kind=kind, step=step, data=data)
        )

    def say(self, text: str) -> None:
        """A line for the person at the terminal."""
        self._progress.say(text)

    def close(self) -> None:
        """Make the record durable and close it."""
        self._progress.close()
        self._journals.sync()
        self._journals.close()

    def _evaluation(self, found: tuple[float, int] | None) -> Evaluation | None:
        if found is None or not math.isfinite(found[0]):
            return None
        loss, tokens = found
        num_bytes = self._held_out_bytes
        return Evaluation(
            loss=loss,
            tokens=tokens,
            bytes=num_bytes,
            bits_per_byte=loss * tokens / (num_bytes * math.log(2)),
        )

    def _start(self, assembly: Assembly) -> None:
        """The attempt's row, and events for what it begins with."""
        job, state = assembly.job, assembly.state
        execution: dict[str, Any] = msgspec.to_builtins(job.execution)
        self._journals.attempts.append(
            AttemptStart(
                attempt=job.attempt,
                time_s=time.time(),
                from_step=state.step,
                execution=execution,
                machine=dict(job.machine),
                fingerprint=dict(assembly.fingerprint),
                versions=versions(),
                parent_generation=assembly.restored.name if assembly.restored else None,
                command=list(job.command),
                accepted="same math" if job.accept else "",
                experiment=_other_experiment(assembly),
                plan={
                    "memory_bytes": job.planned_memory_bytes,
                    "wanted_ranks": job.wanted_ranks,
                    "steps": job.experiment.length.steps,
                    "until": job.until,
                },
            )
        )
        self._discard(assembly.folder, state.step)
        self.event("start", state.step, ranks=job.execution.ranks, dataset=state.cursor.dataset)
        leaf = self._feed.training(state.step + 1, 0)
        texts = [self._feed.text(occurrence.sample.index) for occurrence in leaf.occurrences]
        self.event("sample_text", state.step, for_step=state.step + 1, texts=texts)
        self.sync()

    def _discard(self, folder: RunFolder, step: int) -> None:
        """Rows past the restored generation no longer count; they stay, and an event says so."""
        rows, _ = folder.metrics()
        beyond = [row.step for row in rows if row.step > step]
        if beyond:
            self.event("discarded", step, from_step=min(beyond), to_step=max(beyond))


def _other_experiment(assembly: Assembly) -> dict[str, Any] | None:
    """The document of the experiment that goes on, where it is not the one that the folder was made for."""
    asked = assembly.job.experiment
    if experiment_digest(asked) == experiment_digest(assembly.folder.experiment()):
        return None
    document: dict[str, Any] = json.loads(experiment_json(asked))
    return document


def versions() -> dict[str, str]:
    """The versions of what can matter, by distribution name."""
    names = ("torch", "numpy", "tokenizers", "msgspec", "blake3")
    found = {
        "elinvar": __version__,
        "python": platform.python_version(),
        "torch_git": str(torch.version.git_version),
    }
    for name in names:
        found[name] = importlib.metadata.version(name)
    return found
