"""What will happen, said before it happens.

Nouns: `Plan`, `Estimate` (a duration with its assumption). A plan resolves what the execution left
open (ranks, ownership), counts parameters, tokens, operations and memory, and states the claim. It
is a pure function of its arguments: the launcher's rank count is one of them. It refuses ranks that
contradict the launcher (exit 2) and a job that is larger than the machine (exit 3).
"""

import os
from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from elinvar.errors import DoesNotFit, InvalidInput
from elinvar.plan.claim import Claim, claim_across_executions
from elinvar.plan.compute import Parameters, flops_per_token, parameters
from elinvar.plan.machine import Machine
from elinvar.plan.memory import Memory, estimate
from elinvar.plan.ownership import Kind, owners
from elinvar.spec.execution import Execution
from elinvar.spec.experiment import Experiment


class Estimate(Struct, frozen=True, kw_only=True):
    """A duration in seconds, and what it assumes."""

    seconds: float
    because: str


class Rate(Struct, frozen=True, kw_only=True):
    """A measured speed of this experiment: target tokens per second, and where it was measured."""

    tokens_per_s: float
    because: str


class Plan(Struct, frozen=True, kw_only=True):
    """An experiment and an execution on a machine, with everything that follows before the first step.

    `execution` is resolved: `ranks` is a number, `ownership` a kind. `ownership[rank]` holds the
    leaves of each rank, ascending. `memory` is of the fullest rank; `time` is None where no speed is
    known.
    """

    experiment: Experiment
    execution: Execution
    machine: Machine
    device: str
    ranks: int
    ownership: tuple[tuple[int, ...], ...]
    parameters: Parameters
    tokens_per_step: int
    steps: int
    flops_per_token: int
    memory: Memory
    time: Estimate | None
    claim: Claim
    warnings: tuple[str, ...]

    @property
    def num_parameters(self) -> int:
        """All parameters, each once."""
        return self.parameters.total

    @property
    def tokens(self) -> int:
        """Target tokens of the whole run."""
        return self.steps * self.tokens_per_step


def make_plan(
    experiment: Experiment,
    execution: Execution,
    machine: Machine,
    *,
    launcher_ranks: int | None = None,
    rate: Rate | None = None,
) -> Plan:
    """The plan of `experiment` under `execution` on `machine`.

    `launcher_ranks` is what a launcher started (`launcher_ranks()`), None without one. `rate` is a
    measured speed for the time estimate; without it `machine.flops_per_s` is used, if known.
    Raises InvalidInput where the execution and the launcher name different rank counts, DoesNotFit
    where a rank (on a device) or all ranks together (on a CPU) need more memory than there is.
    """
    ranks = resolve_ranks(execution, launcher_ranks)
    kind: Kind = "contiguous" if execution.ownership == "auto" else execution.ownership
    device = machine.device if execution.device == "auto" else execution.device
    ownership = owners(experiment.batch.microbatches, ranks, kind)
    memory = estimate(experiment, execution, ownership, device)
    _check_memory(memory, machine, device, ranks)
    return Plan(
        experiment=experiment,
        execution=replace(execution, ranks=ranks, ownership=kind),
        machine=machine,
        device=device,
        ranks=ranks,
        ownership=ownership,
        parameters=parameters(experiment.model),
        tokens_per_step=experiment.batch.tokens,
        steps=experiment.length.steps,
        flops_per_token=flops_per_token(experiment),
        memory=memory,
        time=_time(experiment, machine, ownership, device, rate),
        claim=claim_across_executions(experiment),
        warnings=tuple(_warnings(experiment, machine, device, ownership)),
    )


def launcher_ranks(environ: Mapping[str, str] = os.environ) -> int | None:
    """How many ranks a launcher started: its WORLD_SIZE; None where there is none.

    Raises InvalidInput where WORLD_SIZE is no positive number.
    """
    text = environ.get("WORLD_SIZE")
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise InvalidInput(f"WORLD_SIZE is {text!r} in the environment: a launcher sets it to a number ≥ 1")
    return int(text)


def resolve_ranks(execution: Execution, launcher: int | None) -> int:
    """The number of ranks: what the execution says, where it says `auto` the launcher's, else 1."""
    if execution.ranks == "auto":
        return launcher or 1
    if launcher is not None and launcher != execution.ranks:
        raise InvalidInput(
            f"execution.ranks is {execution.ranks}, but the launcher started {launcher} ranks (WORLD_SIZE)",
            ['write execution.ranks = "auto", or start as many ranks as the file says'],
        )
    return execution.ranks


_CUTS: Mapping[str, str] = {
    "parameters": "a smaller experiment.model",
    "gradients": 'execution.ownership="contiguous" holds fewest sums; then a smaller experiment.model',
    "moments": "execution.sharding=1 on more ranks divides them",
    "activations": "fewer experiment.batch.sequences_per_microbatch and more microbatches (same math)",
    "logits": "fewer experiment.batch.sequences_per_microbatch and more microbatches (same math)",
    "exchange": "fewer execution.ranks",
    "process": "fewer execution.ranks",
    "input": "fewer execution.input.prefetch_bytes",
}


def _check_memory(memory: Memory, machine: Machine, device: str, ranks: int) -> None:
    if device == "cpu":
        needed, there = ranks * memory.num_bytes, machine.memory_bytes
        what = f"{ranks} ranks need" if ranks > 1 else "the rank needs"
    elif machine.device_memory_bytes is None:
        return
    else:
        needed, there = memory.num_bytes, machine.device_memory_bytes
        what = "a rank needs"
    if needed <= there:
        return
    first = memory.terms[0]
    raise DoesNotFit(
        f"{what} {_gib(needed)}, but {machine.name} has {_gib(there)}",
        [
            *(f"{term.name:<12}{_gib(term.num_bytes):>12}   {term.because}" for term in memory.terms),
            f"cut {first.name} first: {_CUTS[first.name]}",
        ],
    )


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:,.2f} GiB"


def _time(
    experiment: Experiment,
    machine: Machine,
    ownership: tuple[tuple[int, ...], ...],
    device: str,
    rate: Rate | None,
) -> Estimate | None:
    batch, steps = experiment.batch, experiment.length.steps
    if rate is not None:
        return Estimate(seconds=steps * batch.tokens / rate.tokens_per_s, because=rate.because)
    if machine.flops_per_s is None:
        return None
    most = max(map(len, ownership))
    share = flops_per_token(experiment) * batch.tokens * most / batch.microbatches
    crowd = max(1.0, len(ownership) * experiment.numerics.threads / machine.cores) if device == "cpu" else 1.0
    return Estimate(
        seconds=steps * share / machine.flops_per_s * crowd,
        because=f"{machine.flops_per_s:.3g} operations a second per rank, {most} of {batch.microbatches} "
        "leaves on the fullest rank, nothing else counted",
    )


def _warnings(
    experiment: Experiment, machine: Machine, device: str, ownership: tuple[tuple[int, ...], ...]
) -> list[str]:
    found: list[str] = []
    ranks, num_microbatches = len(ownership), experiment.batch.microbatches
    idle = sum(not leaves for leaves in ownership)
    if idle:
        found.append(
            f"{idle} of {ranks} ranks own no microbatch (there are {num_microbatches}): they hold parameters, "
            "take their share of the exchange and otherwise wait"
        )
    elif num_microbatches % ranks:
        most = max(map(len, ownership))
        found.append(
            f"{num_microbatches} microbatches on {ranks} ranks: the fullest has {most}, so ranks wait for "
            f"{1 - num_microbatches / (ranks * most):.0%} of their time"
        )
    threads = ranks * experiment.numerics.threads
    if device == "cpu" and threads > machine.cores:
        found.append(f"{threads} computing threads share {machine.cores} cores of {machine.name}")
    if device == "cuda" and machine.devices and ranks > machine.devices:
        found.append(f"{ranks} ranks, but {machine.name} has {machine.devices} devices")
    if device == "cuda" and machine.device_memory_bytes is None:
        found.append(f"the device memory of {machine.name} is not known, so the estimate was not checked")
    return found
