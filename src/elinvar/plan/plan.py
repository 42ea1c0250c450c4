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
from elinvar.plan.units import size
from elinvar.spec.execution import Execution
from elinvar.spec.experiment import Experiment
from elinvar.spec.explain import counted


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
    leaves of each rank, ascending. `from_step` is where the run goes on (0: a fresh start); `memory`
    is of the fullest rank; `time` is of the steps that are left, None where no speed is known.
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
    from_step: int
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
    def steps_left(self) -> int:
        """Steps that are still to be computed."""
        return max(0, self.steps - self.from_step)

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
    from_step: int = 0,
) -> Plan:
    """The plan of `experiment` under `execution` on `machine`.

    `launcher_ranks` is what a launcher started (`launcher_ranks()`), None without one. `rate` is a
    measured speed for the time estimate; without it `machine.flops_per_s` is used, if known.
    `from_step` is the step that a run continues from.
    Raises InvalidInput where the execution and the launcher name different rank counts, DoesNotFit
    where the machine lacks a device for each rank, and where a rank (on a device) or all ranks
    together (on a CPU) need more memory than there is.
    """
    ranks = resolve_ranks(execution, launcher_ranks)
    kind: Kind = "contiguous" if execution.ownership == "auto" else execution.ownership
    device = machine.device if execution.device == "auto" else execution.device
    if device == "cuda":
        _check_devices(machine, ranks, launched=launcher_ranks is not None)
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
        from_step=from_step,
        flops_per_token=flops_per_token(experiment),
        memory=memory,
        time=_time(experiment, machine, ownership, device, rate, max(0, experiment.length.steps - from_step)),
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


def _check_devices(machine: Machine, ranks: int, *, launched: bool) -> None:
    """Each rank needs a CUDA device of its own; a launcher may spread ranks over several machines."""
    if machine.devices == 0:
        raise DoesNotFit(
            f"the run asks for CUDA, but {machine.words} has no CUDA device that the installed torch can use",
            [
                'execution.device="auto" takes what is there, "cpu" the processor',
                "elinvar doctor says what was found; --machine NAME|FILE plans for another machine",
            ],
        )
    if ranks > machine.devices and not launched:
        raise DoesNotFit(
            f"{ranks} ranks need a CUDA device each, but {machine.words} has {machine.devices}",
            [
                f"execution.ranks={machine.devices} or less learns the same bits",
                'or several machines with a launcher, execution.ranks="auto" and its WORLD_SIZE',
            ],
        )


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
"""What makes a term smaller, by its name."""


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
    first = memory.terms[0].name
    cut = _CUTS[first]
    if first == "process" and ranks == 1:
        cut = "a machine with more memory; Python and torch alone need most of it"
    raise DoesNotFit(
        f"{what} {size(needed)}, but {machine.words} has {size(there)}",
        [
            "what a rank needs, the largest first:",
            *(f"  {term.name:<12}{size(term.num_bytes):>11}   {term.because}" for term in memory.terms),
            f"what helps most: {cut}",
        ],
    )


def _time(
    experiment: Experiment,
    machine: Machine,
    ownership: tuple[tuple[int, ...], ...],
    device: str,
    rate: Rate | None,
    steps: int,
) -> Estimate | None:
    """How long `steps` steps take."""
    batch = experiment.batch
    if rate is not None:
        return Estimate(seconds=steps * batch.tokens / rate.tokens_per_s, because=rate.because)
    if machine.flops_per_s is None:
        return None
    most = max(map(len, ownership))
    share = flops_per_token(experiment) * batch.tokens * most / batch.microbatches
    crowd = max(1.0, len(ownership) * experiment.numerics.threads / machine.cores) if device == "cpu" else 1.0
    return Estimate(
        seconds=steps * share / machine.flops_per_s * crowd,
        because=f"{machine.flops_per_s:.3g} operations a second per rank, {most} of "
        f"{counted(batch.microbatches, 'leaf', 'leaves')} on the fullest rank, nothing else counted",
    )


def _warnings(
    experiment: Experiment, machine: Machine, device: str, ownership: tuple[tuple[int, ...], ...]
) -> list[str]:
    found: list[str] = []
    ranks, num_microbatches = len(ownership), experiment.batch.microbatches
    idle = sum(not leaves for leaves in ownership)
    if idle:
        found.append(
            f"{idle} of {ranks} ranks {'owns' if idle == 1 else 'own'} no microbatch (there "
            f"{'is' if num_microbatches == 1 else 'are'} {num_microbatches}): a rank without one holds "
            "parameters, takes its share of the exchange and otherwise waits"
        )
    elif num_microbatches % ranks:
        most = max(map(len, ownership))
        found.append(
            f"{counted(num_microbatches, 'microbatch', 'microbatches')} on {counted(ranks, 'rank')}: the fullest has {most}, so ranks wait for "
            f"{1 - num_microbatches / (ranks * most):.0%} of their time"
        )
    threads = ranks * experiment.numerics.threads
    if device == "cpu" and threads > machine.cores:
        found.append(f"{threads} computing threads share {counted(machine.cores, 'core')} of {machine.words}")
    if device == "cuda" and ranks > machine.devices:
        found.append(f"{ranks} ranks, but {machine.words} has {counted(machine.devices, 'device')}")
    if device == "cuda" and machine.device_memory_bytes is None:
        found.append(f"the device memory of {machine.words} is not known, so the estimate was not checked")
    return found
