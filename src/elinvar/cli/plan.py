"""`elinvar plan`: what a run will be, before it runs. Imports neither torch nor numpy."""

from pathlib import Path

import click
import msgspec
from msgspec import Struct

from elinvar.identity import Digest
from elinvar.plan.machine import THIS, read_machine
from elinvar.plan.page import lines
from elinvar.plan.plan import Plan, launcher_ranks, make_plan, resolve_ranks
from elinvar.plan.rate import measured_rate
from elinvar.record.folder import RunFolder
from elinvar.spec.canonical import experiment_digest, math_digest
from elinvar.spec.execution import Execution
from elinvar.spec.read import read, with_overrides


class PlanOutput(Struct, frozen=True, kw_only=True):
    """What `elinvar plan --json` prints."""

    name: str
    experiment_digest: Digest
    math_digest: Digest
    num_parameters: int
    tokens: int
    memory_bytes_per_rank: int
    plan: Plan


@click.command
@click.argument("source", metavar="RUN.toml|PRESET|DIR")
@click.argument("overrides", nargs=-1, metavar="[key=value]...")
@click.option("--machine", metavar="NAME|FILE", help="Plan for another machine than the run file names.")
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON.")
def command(source: str, overrides: tuple[str, ...], machine: str | None, *, as_json: bool) -> None:
    """Parameters, tokens, ownership, memory, time and claim of a run, before it runs.

    A run folder is planned as `elinvar resume` would continue it; its overrides may change the
    execution only. Exit 3 where the run needs more memory than the machine has.
    """
    name, plan = _planned(source, overrides, machine)
    if as_json:
        output = PlanOutput(
            name=name,
            experiment_digest=experiment_digest(plan.experiment),
            math_digest=math_digest(plan.experiment),
            num_parameters=plan.num_parameters,
            tokens=plan.tokens,
            memory_bytes_per_rank=plan.memory.num_bytes,
            plan=plan,
        )
        click.echo(msgspec.json.format(msgspec.json.encode(output), indent=2))
    else:
        click.echo("\n".join(lines(plan, name)))


def _planned(source: str, overrides: tuple[str, ...], machine: str | None) -> tuple[str, Plan]:
    launched = launcher_ranks()
    if Path(source).is_dir():
        folder = RunFolder.open(Path(source))
        attempts = folder.attempts()
        last = msgspec.convert(attempts[-1].start.execution, Execution) if attempts else Execution()
        execution = with_overrides(last, overrides)
        rate = measured_rate(folder, resolve_ranks(execution, launched))
        there = read_machine(machine or THIS)
        plan = make_plan(folder.experiment(), execution, there, launcher_ranks=launched, rate=rate)
        return folder.path.name, plan
    reading = read(source, overrides)
    for note in reading.notes:
        click.echo(note, err=True)
    there = read_machine(machine or reading.machine or THIS)
    return reading.name, make_plan(reading.experiment, reading.execution, there, launcher_ranks=launched)
