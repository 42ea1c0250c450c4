"""What `show` and `diff` are asked about: a run file, a preset or a run folder.

Noun: the `Subject`, with what each of the three can say. A folder's experiment is the recorded one
and its execution that of its last attempt; nothing is read again that the run did not record.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from elinvar.errors import InvalidInput
from elinvar.record.folder import RunFolder
from elinvar.spec.execution import Execution
from elinvar.spec.experiment import Experiment
from elinvar.spec.layers import preset_names
from elinvar.spec.read import read


class Subject(Struct, frozen=True, kw_only=True):
    """`execution` is None for a folder that recorded none; `folder` is None for a file or preset."""

    name: str
    experiment: Experiment
    execution: Execution | None
    machine: str | None = None
    origins: dict[str, str] | None = None
    notes: tuple[str, ...] = ()
    folder: RunFolder | None = None


def open_subject(argument: str, overrides: Sequence[str] = ()) -> Subject:
    """The preset, run file or run folder that `argument` names, under `overrides`.

    A preset's name wins over a folder of that name (`./tiny` is the folder). Raises InvalidInput for
    overrides of a folder: what a run did is not open any more.
    """
    # Not Path.is_dir(): it raises where a name is too long for the system.
    if argument in preset_names() or not os.path.isdir(argument):  # noqa: PTH112
        reading = read(argument, overrides, or_folder=True)
        return Subject(
            name=reading.name,
            experiment=reading.experiment,
            execution=reading.execution,
            machine=reading.machine,
            origins=reading.origins,
            notes=reading.notes,
        )
    folder = RunFolder.open(Path(argument))
    if overrides:
        raise InvalidInput(
            f"{argument} is a run folder: what it did cannot be overridden",
            [f"got {' '.join(overrides)}", "overrides go with a run file or a preset"],
        )
    experiment = folder.present_experiment()
    execution = _last_execution(folder)
    return Subject(name=argument, experiment=experiment, execution=execution, folder=folder)


def last_asked(folder: RunFolder) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """The last execution, resolved, and what was asked for: `wanted_ranks` and `steps`, where recorded.

    Of the last attempt, else of a launch that ended before its attempt began; None without either.
    """
    attempts = folder.attempts()
    if attempts:
        return attempts[-1].start.execution, attempts[-1].start.plan
    asked = [event.data for event in folder.events()[0] if event.kind == "asked"]
    return (asked[-1].get("execution", {}), asked[-1]) if asked else None


def _last_execution(folder: RunFolder) -> Execution | None:
    last = last_asked(folder)
    if last is None:
        return None
    try:
        return msgspec.convert(last[0], Execution)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"{folder.path}: the last recorded execution: {error}") from None
