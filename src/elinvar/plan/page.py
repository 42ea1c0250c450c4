"""A plan as a page of text.

Noun: `lines`. Only words and numbers of the plan; what it does not know it says.
"""

from textwrap import wrap

from elinvar.plan.claim import DIFFERENT_CHANGES, FREE, SAME_MATH_CHANGES
from elinvar.plan.plan import Plan
from elinvar.spec.canonical import experiment_digest, math_digest

_LABEL = 12
_WIDTH = 100
_MOST_RANKS = 16


def lines(plan: Plan, name: str) -> list[str]:
    """The page of `plan` for the run called `name`, without a newline at the end of a line."""
    return [
        *_experiment(plan, name),
        "",
        *_execution(plan),
        "",
        *_memory(plan),
        "",
        *_time(plan),
        "",
        *_claim(plan),
        *(["", *(_row("warning", line) for line in plan.warnings)] if plan.warnings else []),
    ]


def _row(label: str, text: str) -> str:
    return f"{label:<{_LABEL}}{text}".rstrip()


def _experiment(plan: Plan, name: str) -> list[str]:
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
        _row("data", f"{experiment.data.source}   {experiment.data.order}, {held_out} windows held out"),
        _row(
            "a step",
            f"{plan.tokens_per_step:,} tokens   {batch.microbatches} microbatches × "
            f"{batch.sequences_per_microbatch} sequences × {batch.tokens_per_sequence} tokens",
        ),
        _row("the run", f"{plan.steps:,} steps   {plan.tokens:,} tokens"),
        _row(
            "arithmetic",
            f"{plan.flops_per_token * plan.tokens_per_step:.3g} operations a step   "
            f"{plan.flops_per_token:,} a token, forward and backward",
        ),
    ]


def _execution(plan: Plan) -> list[str]:
    execution, machine = plan.execution, plan.machine
    ranks = "1 rank" if plan.ranks == 1 else f"{plan.ranks} ranks"
    devices = f", {machine.devices} devices" if machine.devices else ""
    shown = [
        _row(f"  rank {rank}", " ".join(map(str, leaves)) or "no microbatch")
        for rank, leaves in enumerate(plan.ownership[:_MOST_RANKS])
    ]
    if plan.ranks > _MOST_RANKS:
        shown.append(_row("  …", f"{plan.ranks - _MOST_RANKS} more ranks"))
    return [
        _row(
            "execution",
            f"{ranks} on {plan.device}   ZeRO-{execution.sharding} · {execution.ownership} · "
            f"{execution.input.workers} input workers",
        ),
        _row("machine", f"{machine.name}   {machine.cores} cores, {size(machine.memory_bytes)}{devices}"),
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
    if plan.time is None:
        return [_row("time", "not known: no attempt was measured, and the machine names no flops_per_s")]
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


def size(num_bytes: int) -> str:
    """Bytes in the largest binary unit that leaves at least 1."""
    number, unit = float(num_bytes), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if number < 1024:
            break
        number, unit = number / 1024, larger
    return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"


def duration(seconds: float) -> str:
    """Seconds as one or two of days, hours, minutes and seconds."""
    whole = round(seconds)
    days, rest = divmod(whole, 86_400)
    hours, rest = divmod(rest, 3_600)
    minutes, rest = divmod(rest, 60)
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    if minutes:
        return f"{minutes} min {rest} s"
    return f"{rest} s" if whole else "less than 1 s"
