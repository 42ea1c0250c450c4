"""A plan as a page of text.

Noun: `lines`. Only words and numbers of the plan; what it does not know it says, and what was not
looked at: planning reads neither the data nor torch.
"""

from shlex import quote
from textwrap import wrap

from elinvar.plan.claim import DIFFERENT_CHANGES, FREE, SAME_MATH_CHANGES
from elinvar.plan.plan import Plan
from elinvar.plan.units import duration, size
from elinvar.spec.canonical import experiment_digest, math_digest
from elinvar.spec.explain import counted

_LABEL = 12
_WIDTH = 100
_MOST_RANKS = 16


def lines(plan: Plan, name: str, source: str) -> list[str]:
    """The page of `plan` for the run called `name`, without a newline at the end of a line.

    `source` is how the user named the run (a file, a preset, a folder): commands on the page repeat it.
    """
    return [
        *_experiment(plan, name, source),
        "",
        *_execution(plan),
        "",
        *_memory(plan),
        "",
        *_time(plan),
        "",
        *_claim(plan),
        *(["", *(_row("note", line) for line in plan.warnings)] if plan.warnings else []),
    ]


def _row(label: str, text: str) -> str:
    return f"{label:<{_LABEL}}{text}".rstrip()


def _experiment(plan: Plan, name: str, source: str) -> list[str]:
    experiment, counts, batch = plan.experiment, plan.parameters, plan.experiment.batch
    groups = " · ".join(
        f"{group.replace('_', ' ')} {getattr(counts, group):,}" for group in counts.__struct_fields__
    )
    held_out = experiment.data.held_out
    return [
        _row(
            "experiment",
            f"{name}   {experiment_digest(experiment)[:12]}   math {math_digest(experiment)[:12]}",
        ),
        _row("parameters", f"{plan.num_parameters:,}   {groups}"),
        _row(
            "data",
            f"{experiment.data.source}   {experiment.data.order}, {counted(held_out, 'window')} held out",
        ),
        _row("", f"not read yet; to see whether they suffice: elinvar data show {quote(source)}"),
        _row(
            "a step",
            f"{counted(plan.tokens_per_step, 'token')}   {counted(batch.microbatches, 'microbatch', 'microbatches')} × "
            f"{counted(batch.sequences_per_microbatch, 'sequence')} × {counted(batch.tokens_per_sequence, 'token')}",
        ),
        _row("the run", f"{counted(plan.steps, 'step')}   {counted(plan.tokens, 'token')}{_left(plan)}"),
        _row(
            "arithmetic",
            f"{plan.flops_per_token * plan.tokens_per_step:.3g} operations a step   "
            f"{plan.flops_per_token:,} a token, forward and backward",
        ),
    ]


def _left(plan: Plan) -> str:
    """What of a run that goes on is still to be done."""
    if not plan.from_step:
        return ""
    left = f"{counted(plan.steps_left, 'step')} left" if plan.steps_left else "nothing is left to do"
    return f"   step {plan.from_step:,} is saved, {left}"


def _execution(plan: Plan) -> list[str]:
    execution, machine = plan.execution, plan.machine
    devices = f", {counted(machine.devices, 'device')}" if machine.devices else ""
    cores = f"{counted(machine.cores, 'core')}, {size(machine.memory_bytes)}{devices}"
    shown = [
        _row(f"  rank {rank}", " ".join(map(str, leaves)) or "no microbatch")
        for rank, leaves in enumerate(plan.ownership[:_MOST_RANKS])
    ]
    if plan.ranks > _MOST_RANKS:
        shown.append(_row("  …", f"{counted(plan.ranks - _MOST_RANKS, 'more rank')}"))
    return [
        _row(
            "execution",
            f"{counted(plan.ranks, 'rank')} on {plan.device}   ZeRO-{execution.sharding} · {execution.ownership} · "
            f"{counted(execution.input.workers, 'input worker')}",
        ),
        _row("machine", f"{machine.words}   {cores}"),
        _row("  owner", "microbatches"),
        *shown,
    ]


def _memory(plan: Plan) -> list[str]:
    per_rank = plan.memory.num_bytes
    if plan.device == "cpu":
        there = f"{size(per_rank * plan.ranks)} in all, of {size(plan.machine.memory_bytes)}"
    elif plan.machine.device_memory_bytes is None:
        there = "of an unknown amount"
    else:
        there = f"of {size(plan.machine.device_memory_bytes)} a device"
    return [
        _row("memory", f"{size(per_rank)} a rank at most, {there} (an estimate)"),
        *(
            f"  {term.name:<{_LABEL}}{size(term.num_bytes):>10}   {term.because}"
            for term in plan.memory.terms
        ),
    ]


def _time(plan: Plan) -> list[str]:
    if plan.from_step and not plan.steps_left:
        return [_row("time", f"none: step {plan.from_step:,} is reached")]
    if plan.time is None:
        return [
            _row("time", "not known: this experiment was not measured on so many ranks"),
            _row("", "a run gives the rate, also one that --until 20 stops: then elinvar plan DIR;"),
            _row("", "or a machine file that says flops_per_s: elinvar plan --machine FILE"),
        ]
    return [_row("time", f"{duration(plan.time.seconds)}   {plan.time.because}")]


def _claim(plan: Plan) -> list[str]:
    found = [_row("claim", f"{plan.claim.relation}   {', '.join(plan.claim.because)}")]
    if plan.claim.relation == "same bits":
        found += _wrapped("  free", " · ".join(FREE))
    return [
        *found,
        *_wrapped("  same math", " · ".join(SAME_MATH_CHANGES)),
        *_wrapped("  different", " · ".join(DIFFERENT_CHANGES)),
    ]


def _wrapped(label: str, text: str) -> list[str]:
    return wrap(text, _WIDTH, initial_indent=f"{label:<{_LABEL}}", subsequent_indent=" " * _LABEL)
