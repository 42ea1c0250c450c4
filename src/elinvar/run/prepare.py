"""From what a user asked to a job: which folder, which attempt, and whether it may go on.

Nouns: `Asked` (a train or resume command, resolved) and the `Preparation` that holds the folder's
lock. Nothing is created before everything that can be refused has been looked at. No PyTorch here,
and arrays only once something is prepared: commands that only print their help import this module.
"""

import os
import time
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from elinvar.checkpoint.payload import is_sound
from elinvar.errors import InvalidInput
from elinvar.plan.machine import Machine
from elinvar.plan.plan import Plan, launcher_ranks, make_plan
from elinvar.record.attempt import FAILED, AttemptEnd
from elinvar.record.events import Event
from elinvar.record.folder import Lock, RunFolder, new_path
from elinvar.record.journal import Journal
from elinvar.record.lineage import Lineage
from elinvar.record.manifest import Generation, list_generations, read_manifest
from elinvar.run.job import Job, Kill, Outcome, Source
from elinvar.spec.canonical import experiment_digest, math_digest
from elinvar.spec.execution import Execution
from elinvar.spec.experiment import Experiment
from elinvar.spec.explain import refused_continuation
from elinvar.spec.model import parameter_shapes
from elinvar.spec.read import experiment_json


@dataclass(frozen=True)
class Asked:
    """A run that somebody wants: `folder` None asks for a new one below `root`, named after `name`."""

    name: str
    experiment: Experiment
    execution: Execution
    machine: Machine
    folder: Path | None = None
    root: Path = Path("runs")
    until: int | None = None
    at: int | None = None
    accept: bool = False
    fork: tuple[Path, int] | None = None
    command: tuple[str, ...] = ()
    kill: Kill | None = None
    quiet: bool = False
    evaluates: bool = True


@dataclass
class Preparation:
    """A job that may run, the plan behind it, and the lock that is held meanwhile."""

    job: Job
    plan: Plan
    folder: RunFolder
    lock: Lock = field(repr=False)
    is_new: bool = False
    is_complete: bool = False
    notes: tuple[str, ...] = ()

    def begin(self) -> None:
        """Record what is asked for before any rank starts, so that a run that dies early can be resumed as meant."""
        job = self.job
        asked = {
            "execution": msgspec.to_builtins(job.execution),
            "wanted_ranks": job.wanted_ranks,
            "steps": job.experiment.length.steps,
            "until": job.until,
            "command": list(job.command),
        }
        with Journal[Event](self.folder.events_path) as events:
            if events.torn_bytes:
                data = {"file": events.path.name, "bytes": events.torn_bytes}
                events.append(self._event("torn_line", data))
                self.notes = (torn_note(events.path.name, events.torn_bytes),)
            events.append(self._event("asked", asked))

    def _event(self, kind: str, data: dict[str, Any]) -> Event:
        return Event(
            attempt=self.job.attempt, time_s=time.time(), kind=kind, step=saved_step(self.folder), data=data
        )

    def end(self, outcome: Outcome | None, message: str = "", reason: str = FAILED) -> None:
        """Write the attempt's last row and give the folder free, also where the disk does not take the row.

        `reason` is for an attempt without an outcome. One that never started leaves an event, no row.
        """
        with self.lock:
            if not any(attempt.attempt == self.job.attempt for attempt in self.folder.attempts()):
                with Journal[Event](self.folder.events_path) as events:
                    events.append(self._event("stop", {"reason": reason, "message": message}))
                return
            step = outcome.step if outcome else last_step(self.folder, self.job.attempt)
            with closing(self.folder.journals()) as journals:
                journals.attempts.append(
                    AttemptEnd(
                        attempt=self.job.attempt,
                        time_s=time.time(),
                        to_step=step,
                        reason=outcome.reason if outcome else reason,
                        message=message,
                    )
                )
                journals.attempts.sync()


def prepare(asked: Asked) -> Preparation:
    """Check, plan, create or open the folder, and lock it. Raises InvalidInput, DoesNotFit, StorageFailed."""
    from elinvar.data.feed import Feed
    from elinvar.data.store import open_store

    experiment = asked.experiment
    plan = make_plan(experiment, asked.execution, asked.machine, launcher_ranks=launcher_ranks())
    until = _until(asked)
    store = open_store(experiment.data, cache_folder())
    Feed(store, experiment)  # refuses data that are too short or that the model cannot name
    exists = asked.folder is not None and (asked.folder / "experiment.json").exists()
    source = _source(asked.fork, experiment) if asked.fork is not None else None
    if exists:
        assert asked.folder is not None
        if source is not None:
            raise InvalidInput(
                f"{asked.folder} holds a run already; a fork needs a new folder", ["--run OTHER"]
            )
        folder = RunFolder.open(asked.folder)
        _check_same(folder, asked)
        if asked.at is not None:
            generation_at(folder, asked.at)
    else:
        path = asked.folder or new_path(asked.root, asked.name, experiment_digest(experiment))
        folder = RunFolder.create(path, experiment_json(experiment), _lineage(source))
    lock = folder.lock()
    try:
        job = _job(asked, plan, folder, until, source)
        preparation = Preparation(
            job=job,
            plan=plan,
            folder=folder,
            lock=lock,
            is_new=not exists,
            is_complete=_is_complete(folder, job),
        )
        if not preparation.is_complete:
            preparation.begin()
    except BaseException:
        lock.release()
        raise
    return preparation


def _job(asked: Asked, plan: Plan, folder: RunFolder, until: int, source: Source | None) -> Job:
    """The next attempt of a locked folder."""
    assert isinstance(plan.execution.ranks, int)
    return Job(
        folder=str(folder.path),
        attempt=folder.next_attempt(),
        experiment=asked.experiment,
        execution=plan.execution,
        wanted_ranks=asked.execution.ranks,
        ownership=plan.ownership,
        until=until,
        at=asked.at,
        accept=asked.accept,
        fork=source if source is not None else _recorded_fork(folder),
        planned_memory_bytes=plan.memory.num_bytes,
        machine=msgspec.to_builtins(asked.machine),
        command=asked.command,
        kill=asked.kill,
        quiet=asked.quiet,
        evaluates=asked.evaluates,
    )


def _is_complete(folder: RunFolder, job: Job) -> bool:
    """Whether the step that was asked for is reached by a generation whose every byte is as written."""
    if job.at is not None:
        return job.at == job.until
    found = list_generations(folder.generations_path)
    return bool(found) and found[-1].step >= job.until and is_sound(found[-1], math_digest(job.experiment))


def torn_note(file: str, num_bytes: int) -> str:
    """What the user hears about a torn last line."""
    return f"{file} ended in a torn line of {num_bytes} bytes; it was closed and is skipped"


def saved_step(folder: RunFolder) -> int:
    """The step of the newest committed generation; 0 where there is none."""
    found = list_generations(folder.generations_path)
    return found[-1].step if found else 0


def last_step(folder: RunFolder, attempt: int) -> int:
    """The last step that `attempt` finished: that of its last metrics row, else the one that it began from."""
    rows, _ = folder.metrics()
    steps = [row.step for row in rows if row.attempt == attempt]
    began = [other.from_step for other in folder.attempts() if other.attempt == attempt]
    return steps[-1] if steps else (began[-1] if began else saved_step(folder))


def cache_folder() -> Path | None:
    """Where built data is kept, if the user said so: ELINVAR_CACHE."""
    named = os.environ.get("ELINVAR_CACHE")
    return Path(named) if named else None


def _until(asked: Asked) -> int:
    steps = asked.experiment.length.steps
    if asked.until is None:
        return steps
    if not 1 <= asked.until <= steps:
        raise InvalidInput(
            f"--until {asked.until} lies outside the run: experiment.length.steps is {steps}",
            [f"choose 1 to {steps}"]
            + [f"or lengthen the run: experiment.length.steps={asked.until}"] * (asked.until > steps),
        )
    if asked.at is not None and asked.until < asked.at:
        raise InvalidInput(
            f"--until {asked.until} lies before --at {asked.at}", [f"choose {asked.at + 1} to {steps}"]
        )
    return asked.until


def _check_same(folder: RunFolder, asked: Asked) -> None:
    """Refuse to continue a folder with another experiment, with both values of each changed path."""
    recorded = folder.present_experiment()
    if experiment_digest(recorded) == experiment_digest(asked.experiment):
        return
    if math_digest(recorded) != math_digest(asked.experiment) or not asked.accept:
        step = saved_step(folder)
        raise refused_continuation(str(folder.path), recorded, asked.experiment, step, asked.command)


def generation_at(folder: RunFolder, step: int) -> Generation:
    """The newest generation of exactly `step`. Raises InvalidInput, listing the steps there are."""
    found = folder.generations()
    chosen = [generation for generation in found if generation.step == step]
    if not chosen:
        steps = ", ".join(str(generation.step) for generation in found) or "none"
        raise InvalidInput(
            f"{folder.path} has no generation at step {step}", [f"generations are at step: {steps}"]
        )
    return chosen[-1]


def _source(fork: tuple[Path, int], experiment: Experiment) -> Source:
    """The parent of a fork. Raises InvalidInput: no run, no generation at that step, tensors of another model."""
    path, step = fork
    parent = RunFolder.open(path)
    theirs = {entry.name: tuple(entry.shape) for entry in read_manifest(generation_at(parent, step)).tensors}
    for name, shape in parameter_shapes(experiment.model).items():
        found = theirs.get(f"parameter/{name}")
        if found != tuple(shape):
            raise InvalidInput(
                f"a fork of {path} needs its model: {name} is {list(found) if found else 'not there'} in it, "
                f"{list(shape)} here",
                ["what a fork may change: data, batch, optimizer, schedule, length, numerics, seed"],
            )
    return Source(
        generations=str(parent.generations_path),
        step=step,
        run=str(parent.path),
        experiment_digest=experiment_digest(parent.experiment()),
    )


def _lineage(source: Source | None) -> Lineage | None:
    if source is None:
        return None
    return Lineage(
        run=source.run,
        step=source.step,
        generation=generation_at(RunFolder(Path(source.run)), source.step).name,
        experiment_digest=source.experiment_digest,
    )


def _recorded_fork(folder: RunFolder) -> Source | None:
    """A fork that was killed before its first generation begins at its parent again."""
    lineage = folder.lineage()
    if lineage is None or list_generations(folder.generations_path):
        return None
    return _source((Path(lineage.run), lineage.step), folder.experiment())
