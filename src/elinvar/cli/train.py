"""`elinvar train`: run a run file or preset in a new folder, or go on in an existing one."""

import sys
from pathlib import Path

import click

from elinvar.cli.running import carry_out
from elinvar.errors import InvalidInput
from elinvar.plan.machine import THIS, read_machine
from elinvar.run.prepare import Asked
from elinvar.run.progress import say
from elinvar.spec.read import read


@click.command
@click.argument("source", metavar="RUN.toml|PRESET")
@click.argument("overrides", nargs=-1, metavar="[key=value]...")
@click.option(
    "--run",
    "folder",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Create this folder, or continue it.",
)
@click.option("--until", type=int, metavar="STEP", help="Save and stop after this step.")
@click.option("--fork", metavar="DIR@STEP", help="Begin with the state of another run's generation.")
@click.option("--accept", type=click.Choice(["same-math"]), help="Continue where bits may move.")
@click.option("--machine", metavar="NAME|FILE", help="The machine to plan for.")
@click.option("--quiet", is_flag=True, help="Print errors only.")
def command(
    source: str,
    overrides: tuple[str, ...],
    folder: Path | None,
    until: int | None,
    fork: str | None,
    accept: str | None,
    machine: str | None,
    *,
    quiet: bool,
) -> None:
    """Train SOURCE. Without --run in a new folder runs/<name>-<digest>; a complete run is left as it is.

    Exit codes: 0 done, 1 failed, 2 wrong input, 3 does not fit here, 75 stopped by SIGTERM and
    resumable, 130 interrupted after saving.
    """
    reading = read(source, overrides)
    if not quiet:
        for note in reading.notes:
            say(f"note   {note}")
    code = carry_out(
        Asked(
            name=reading.name,
            experiment=reading.experiment,
            execution=reading.execution,
            machine=read_machine(machine or reading.machine or THIS),
            folder=folder,
            until=until,
            accept=accept is not None,
            fork=_fork(fork) if fork is not None else None,
            command=tuple(sys.argv),
            quiet=quiet,
        )
    )
    click.get_current_context().exit(code)


def _fork(text: str) -> tuple[Path, int]:
    path, at, step = text.rpartition("@")
    if not at or not (step.isascii() and step.isdigit()) or not path:
        raise InvalidInput(
            f"--fork {text!r} does not name a state", ["write DIR@STEP, as runs/tiny-1a2b3c@120"]
        )
    return Path(path), int(step)
