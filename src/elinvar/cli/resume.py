"""`elinvar resume`: go on with a run folder from its newest generation, or from one step's."""

import sys
from pathlib import Path
from shlex import quote
from typing import Any

import click
import msgspec
from msgspec.structs import replace

from elinvar.cli.running import carry_out
from elinvar.cli.subject import last_asked
from elinvar.errors import InvalidInput
from elinvar.plan.machine import THIS, read_machine
from elinvar.record.folder import RunFolder
from elinvar.run.prepare import Asked
from elinvar.spec.execution import Execution
from elinvar.spec.experiment import Experiment
from elinvar.spec.read import with_overrides


@click.command
@click.argument("folder", type=click.Path(path_type=Path), metavar="DIR")
@click.argument("overrides", nargs=-1, metavar="[key=value]...")
@click.option("--at", type=int, metavar="STEP", help="Go on from the generation of exactly this step.")
@click.option("--until", type=int, metavar="STEP", help="Save and stop after this step.")
@click.option("--accept", type=click.Choice(["same-math"]), help="Continue where bits may move.")
@click.option("--machine", metavar="NAME|FILE", help="The machine to plan for.")
@click.option("--quiet", is_flag=True, help="Print errors only.")
def command(
    folder: Path,
    overrides: tuple[str, ...],
    at: int | None,
    until: int | None,
    accept: str | None,
    machine: str | None,
    *,
    quiet: bool,
) -> None:
    """Continue DIR with the execution of its last attempt under overrides (execution keys only)."""
    run = RunFolder.open(folder)
    execution, steps = _last(run)
    experiment = run.present_experiment()
    code = carry_out(
        Asked(
            name=folder.name,
            experiment=with_steps(experiment, steps),
            execution=with_overrides(execution, overrides),
            machine=read_machine(machine or THIS),
            folder=folder,
            until=until,
            at=at,
            accept=accept is not None,
            command=tuple(sys.argv),
            quiet=quiet,
        )
    )
    click.get_current_context().exit(code)


def with_steps(experiment: Experiment, steps: int | None) -> Experiment:
    """The experiment with the length that the last attempt ran for (it is in no digest)."""
    return (
        experiment if steps is None else replace(experiment, length=replace(experiment.length, steps=steps))
    )


def _last(run: RunFolder) -> tuple[Execution, int | None]:
    """The execution asked for last, ranks as they were asked for, and its length in steps."""
    last = last_asked(run)
    if last is None:
        raise InvalidInput(
            f"{run.path} recorded no execution yet",
            [f"begin it: elinvar train RUN.toml --run {quote(str(run.path))}"],
        )
    recorded, wanted = last
    fields: dict[str, Any] = {**recorded, "ranks": wanted.get("wanted_ranks", "auto")}
    try:
        return msgspec.convert(fields, Execution), wanted.get("steps")
    except msgspec.ValidationError as error:
        raise InvalidInput(f"{run.path}: the last recorded execution: {error}") from None
