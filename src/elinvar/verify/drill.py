"""Running the cases: each one from step 0, in a folder of its own, on ranks forked from one warm process.

Noun: `Drill`, which runs a case or a contrast and returns its line of the proof. Ranks are killed
for real, by SIGKILL, and resumed through the same door as any user's run.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
from msgspec.structs import replace
from safetensors.torch import load_file

from elinvar.data.feed import Feed
from elinvar.errors import ElinvarError, RunFailed
from elinvar.numerics.fingerprint import fingerprint
from elinvar.plan.machine import Machine
from elinvar.plan.plan import make_plan
from elinvar.record import proof as record
from elinvar.record.folder import RunFolder
from elinvar.run.job import Job, Kill, Outcome
from elinvar.run.launch import launch
from elinvar.run.prepare import Asked, prepare
from elinvar.spec.execution import Execution
from elinvar.spec.experiment import Experiment
from elinvar.verify.case import Case, Contrast, execution_of
from elinvar.verify.compare import (
    Evidence,
    differing_tensors,
    evidence,
    first_difference,
    largest_distance,
)
from elinvar.verify.oracle import PARAMETERS, ddp, naive


@dataclass
class Drill:
    """Cases of one experiment over `steps` steps, in folders below `workplace`; the first is the reference."""

    experiment: Experiment
    machine: Machine
    feed: Feed
    steps: int
    workplace: Path
    reference: Evidence | None = None
    reference_folder: RunFolder | None = None

    def run(self, case: Case) -> record.Case:
        """Run `case` and compare it with the reference (the first case run is the reference)."""
        began = time.monotonic()
        folder = self._folder()
        if case.killed_at is None:
            self._train(folder, case.execution)
        else:
            self._train_and_kill(folder, case.execution, case.killed_at)
            assert case.resumed is not None
            self._train(folder, case.resumed)
        run = RunFolder.open(folder)
        found = evidence(run, self.feed, self.steps)
        is_reference = self.reference is None
        if self.reference is None or self.reference_folder is None:
            self.reference, self.reference_folder = found, run
        relation, message = self._relation(found, run)
        whole = not (found.skipped or found.repeated or found.wrong_steps)
        return record.Case(
            name=case.name,
            execution=msgspec.to_builtins(case.resumed or case.execution),
            digests=found.digests,
            relation=relation,
            expected="reference" if is_reference else "same bits",
            tokens=found.tokens,
            skipped=found.skipped,
            repeated=found.repeated,
            seconds=round(time.monotonic() - began, 3),
            ok=relation == "same bits" and whole and self.steps in found.digests,
            message=message if whole else f"{message}; other samples in steps {list(found.wrong_steps)}",
        )

    def recorded(self, run: RunFolder) -> record.Case | None:
        """Compare what a run folder recorded when it ran; None where nothing of it can be compared."""
        assert self.reference is not None
        found = evidence(run, self.feed, self._comparable_steps(run))
        common = {step: digest for step, digest in found.digests.items() if step in self.reference.digests}
        if not common:
            return None
        differs = first_difference(self.reference, found)
        whole = not (found.skipped or found.repeated or found.wrong_steps)
        message = "" if differs is None else f"first differs at step {differs}"
        if not whole:
            message = f"{message}; other samples in steps {list(found.wrong_steps)}".removeprefix("; ")
        attempts = run.attempts()
        return record.Case(
            name="this run, as it was recorded",
            execution=dict(attempts[-1].start.execution) if attempts else {},
            digests=common,
            relation="same bits" if differs is None else "different",
            expected="same bits",
            tokens=found.tokens,
            skipped=found.skipped,
            repeated=found.repeated,
            seconds=0.0,
            ok=differs is None and whole,
            message=message,
        )

    def contrast(self, case: Contrast) -> record.Case:
        """Run the experiment the usual way; it is expected to differ, and by how much is told."""
        assert self.reference is not None
        assert self.reference_folder is not None
        began = time.monotonic()
        folder = self._folder()
        folder.mkdir()
        execution = execution_of(case.ranks)
        plan = make_plan(self.experiment, execution, self.machine)
        job = Job(
            folder=str(folder),
            attempt=1,
            experiment=self.experiment,
            execution=execution,
            wanted_ranks=case.ranks,
            ownership=plan.ownership,
            until=self.steps,
            quiet=True,
        )
        outcome: Outcome = launch(job, ddp if case.kind == "ddp" else naive, saves=False)
        same = outcome.update_digest == self.reference.digests[self.steps]
        distance = largest_distance(self.reference_folder, load_file(folder / PARAMETERS), self.steps)
        return record.Case(
            name=case.name,
            execution=msgspec.to_builtins(execution),
            digests={self.steps: outcome.update_digest},
            relation="same bits" if same else "different",
            expected="different",
            tokens=self.steps * self.experiment.batch.tokens,
            skipped=0,
            repeated=0,
            seconds=round(time.monotonic() - began, 3),
            ok=True,  # a contrast shows, it claims nothing
            message=f"largest difference of a parameter {distance:.1e}",
        )

    def _comparable_steps(self, run: RunFolder) -> int:
        """How many of the steps that the run has taken are promised to have the reference's bits here.

        None of a fork, which began elsewhere; none after an accepted change of bits, or on other kernels.
        """
        if run.lineage() is not None:
            return 0
        rows, _ = run.metrics()
        here = fingerprint(self.experiment.numerics, "cpu")
        ends = [
            attempt.from_step
            for attempt in run.attempts()
            if attempt.start.accepted or attempt.start.fingerprint != here
        ]
        return min([self.steps, max((row.step for row in rows), default=0), *ends])

    def _train(self, folder: Path, execution: Execution, kill: Kill | None = None) -> None:
        preparation = prepare(
            Asked(
                name="verify",
                experiment=self.experiment,
                execution=execution,
                machine=self.machine,
                folder=folder,
                until=self.steps,
                kill=kill,
                quiet=True,
                evaluates=False,
            )
        )
        outcome: Outcome | None = None
        message = ""
        try:
            outcome = launch(preparation.job, saves=False)
        except ElinvarError as error:
            message = error.message
            raise
        finally:
            preparation.end(outcome, message)

    def _train_and_kill(self, folder: Path, execution: Execution, step: int) -> None:
        """Train until the last rank is killed at `step`; anything but that death is an error."""
        assert isinstance(execution.ranks, int)
        victim = execution.ranks - 1
        try:
            self._train(folder, execution, Kill(rank=victim, step=step))
        except RunFailed:
            attempt = RunFolder.open(folder).attempts()[-1]
            rows, _ = RunFolder.open(folder).metrics()
            if rows and max(row.step for row in rows) >= step:
                raise
            assert attempt.reason == "failed"
            return
        raise RunFailed(f"rank {victim} was to be killed at step {step}, and was not")

    def _relation(self, found: Evidence, run: RunFolder) -> tuple[str, str]:
        assert self.reference is not None
        assert self.reference_folder is not None
        step = first_difference(self.reference, found)
        if step is None:
            return "same bits", ""
        names = differing_tensors(self.reference_folder, run, step)
        what = (
            f": {names[0]}" + (f" and {len(names) - 1} more tensors" if len(names) > 1 else "")
            if names
            else ""
        )
        return "different", f"first differs at step {step}{what}"

    def _folder(self) -> Path:
        return self.workplace / f"case-{next(self._numbers)}"

    def __post_init__(self) -> None:
        self._numbers: Iterator[int] = iter(range(10**6))


def shortened(experiment: Experiment, steps: int) -> Experiment:
    """The experiment with length `steps`; its schedule, and so its digest, stay as they are."""
    return replace(experiment, length=replace(experiment.length, steps=steps))
