"""`elinvar plan`: what a run will be, before it runs. Imports neither torch nor numpy."""

from pathlib import Path

import click
import msgspec
from msgspec import Struct
from msgspec.structs import replace

from elinvar.cli.doctor import kept_fingerprint
from elinvar.cli.subject import last_asked, open_subject
from elinvar.cli.terminal import print_json, print_lines
from elinvar.identity import Digest
from elinvar.plan.claim import Claim, relation_of
from elinvar.plan.machine import NAMES, THIS, read_machine
from elinvar.plan.page import lines
from elinvar.plan.plan import Plan, launcher_ranks, make_plan, resolve_ranks
from elinvar.plan.rate import measured_rate
from elinvar.record.attempt import Attempt
from elinvar.run.progress import say
from elinvar.spec.canonical import experiment_digest, math_digest
from elinvar.spec.execution import Execution
from elinvar.spec.layers import preset_names
from elinvar.spec.read import with_overrides


class PlanOutput(Struct, frozen=True, kw_only=True):
    """What `elinvar plan --json` prints."""

    name: str
    experiment_digest: Digest
    math_digest: Digest
    num_parameters: int
    tokens: int
    memory_bytes_per_rank: int
    plan: Plan


@click.command("plan")
@click.argument("source", metavar="RUN.toml|PRESET|DIR")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option(
    "--machine",
    metavar="NAME|FILE",
    help=f"Plan for another machine than the run file names: {NAMES} with its keys (docs/reference/run-file.md).",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(source: str, overrides: tuple[str, ...], machine: str | None, *, as_json: bool) -> None:
    """Parameters, tokens, ownership, memory, time and claim of a run, before it runs.

    A run folder is planned as `elinvar resume` would continue it; its overrides may change the
    execution only, and the claim compares the fingerprint of its last attempt with the one that
    `elinvar doctor` kept. Neither the data nor torch is read. Exit 3 where the run needs more memory
    or other devices than the machine has.
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
        print_json(msgspec.to_builtins(output))
    else:
        print_lines(*lines(plan, name, source))


def _planned(source: str, overrides: tuple[str, ...], machine: str | None) -> tuple[str, Plan]:
    launched = launcher_ranks()
    subject = open_subject(source) if _is_folder(source) else open_subject(source, overrides)
    for note in subject.notes:
        say(f"note   {note}")
    there = read_machine(machine or subject.machine or THIS)
    if subject.folder is None:
        assert subject.execution is not None, "a run file has an execution"
        return subject.name, make_plan(subject.experiment, subject.execution, there, launcher_ranks=launched)
    attempts = subject.folder.attempts()
    experiment, execution = subject.experiment, subject.execution or Execution()
    last = last_asked(subject.folder)
    if last is not None:
        # What the user asked for, not what it was resolved to: "auto" is open again.
        wanted = last[1]
        execution = replace(execution, ranks=wanted.get("wanted_ranks", execution.ranks))
        steps = wanted.get("steps", experiment.length.steps)
        experiment = replace(experiment, length=replace(experiment.length, steps=steps))
    execution = with_overrides(execution, overrides)
    rate = measured_rate(subject.folder, resolve_ranks(execution, launched))
    saved = subject.folder.generations()
    plan = make_plan(
        experiment,
        execution,
        there,
        launcher_ranks=launched,
        rate=rate,
        from_step=saved[-1].step if saved else 0,
    )
    if attempts and there.name == THIS:
        plan = replace(plan, claim=_claim_of_continuing(plan, attempts[-1]))
    return subject.name, plan


def _is_folder(source: str) -> bool:
    return source not in preset_names() and Path(source).is_dir()


def _claim_of_continuing(plan: Plan, last: Attempt) -> Claim:
    """What continuing on this machine promises, by the fingerprint that `elinvar doctor` kept.

    The experiment decides the parts `threads` and `deterministic`, and it is the same.
    """
    there, here = dict(last.start.fingerprint), kept_fingerprint()
    if here is None or here.get("device") != there.get("device"):
        return relation_of(plan.experiment, there, plan.experiment, None)
    decided = {name: there[name] for name in ("threads", "deterministic") if name in there}
    return relation_of(plan.experiment, there, plan.experiment, here | decided)
