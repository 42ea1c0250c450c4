"""`elinvar demo`: train `tiny`, verify that run, and say where its report is."""

from pathlib import Path

import click

from elinvar.cli.running import carry_out
from elinvar.cli.terminal import print_lines
from elinvar.cli.verify import check, prove
from elinvar.plan.machine import THIS, read_machine
from elinvar.record.folder import RunFolder, new_path
from elinvar.run.early import stoppable
from elinvar.run.forkserver import warm_up
from elinvar.run.prepare import Asked
from elinvar.run.progress import say
from elinvar.spec.canonical import experiment_digest
from elinvar.spec.read import read

STEPS = 20


@click.command
def command() -> None:
    """Train a small model on Shakespeare, then prove that it did not matter how: about two minutes."""
    warm_up()
    reading = read("tiny")
    folder = new_path(Path("runs"), reading.name, experiment_digest(reading.experiment))
    say(f"$ elinvar train tiny --run {folder}")
    code = carry_out(
        Asked(
            name=reading.name,
            experiment=reading.experiment,
            execution=reading.execution,
            machine=read_machine(THIS),
            folder=folder,
            command=("elinvar", "train", "tiny", "--run", str(folder)),
        )
    )
    if code:
        click.get_current_context().exit(code)
    say(f"\n$ elinvar verify {folder}")
    with stoppable("stopped: nothing is proven; the run is complete"):
        proof = prove(reading.name, reading.experiment, RunFolder.open(folder), STEPS, executions=[])
    check(proof)
    print_lines(
        "",
        f"report  {folder / 'report.html'}",
        f'sample  elinvar sample {folder} "The "',
    )
