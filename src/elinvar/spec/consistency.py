"""Checks between fields: each names the field, why it cannot be, and the nearest values that work.

Nouns: the shape of the network, its vocabulary against the tokenizer's, the schedule's lengths,
numbers that float32 arithmetic can take. Each
value alone was checked before (`check.py`). Refuses nothing that depends on a machine.
"""

from collections.abc import Callable, Iterable

from elinvar.spec.data import Bytes
from elinvar.spec.execution import Execution
from elinvar.spec.experiment import Experiment
from elinvar.spec.explain import Problem
from elinvar.spec.schedule import Cosine

Where = Callable[[str], str]

MAX_WEIGHT_ELEMENTS = 2**40
MAX_STEP_TOKENS = 2**40
MAX_MICROBATCHES = 2**20
MAX_LAYERS = 2**16
MAX_RANKS = 2**20
MAX_POSITIONS = 2**62
MAX_FLOAT = 1e30
MIN_FLOAT = 1e-30
"""Bounds of what float32 computes with (it ends at 3.4e38 and 1.2e-38), room for products left."""


def experiment_problems(experiment: Experiment, where: Where) -> list[Problem]:
    """Everything in `experiment` that contradicts itself."""
    problems: list[Problem] = []
    for check in (_heads, _kv_heads, _vocabulary, _dropout, _warmup, _sizes, _floats):
        problems += check(experiment, where)
    return problems


def execution_problems(execution: Execution, where: Where) -> list[Problem]:
    """Everything in `execution` that no machine can carry."""
    if execution.ranks != "auto" and execution.ranks > MAX_RANKS:
        path = "execution.ranks"
        return [Problem(f"{path} is {execution.ranks}", where(path), (f"the most is {MAX_RANKS}",))]
    return []


def vocabulary_needed(experiment: Experiment) -> int:
    """The number of token ids that the tokenizer may produce."""
    tokenizer = experiment.data.tokenizer
    return 257 if isinstance(tokenizer, Bytes) else tokenizer.vocab_size


def _heads(experiment: Experiment, where: Where) -> list[Problem]:
    model = experiment.model
    path = "experiment.model.hidden_size"
    size, heads = model.hidden_size, model.num_heads
    if size % heads == 0 and model.head_dim % 2 == 0:
        return []
    if size % heads:
        what = f"{path} = {size} does not divide into {heads} heads"
    else:
        what = f"{path} = {size} gives {heads} heads of odd width {model.head_dim}; rotary positions need an even one"
    unit = 2 * heads
    sizes = [value for value in (size // unit * unit, size // unit * unit + unit) if value > 0]
    details = [f"with num_heads = {heads}: hidden_size {_either(sizes)}"]
    if size % 2 == 0:
        counts = _nearest_divisors(size // 2, heads)
        details.append(f"with hidden_size = {size}: num_heads {_either(counts)}")
    return [Problem(what, where(path), tuple(details))]


def _kv_heads(experiment: Experiment, where: Where) -> list[Problem]:
    model = experiment.model
    path = "experiment.model.num_kv_heads"
    if model.num_heads % model.num_kv_heads == 0:
        return []
    what = f"{path} = {model.num_kv_heads} does not divide num_heads = {model.num_heads}"
    counts = _nearest_divisors(model.num_heads, model.num_kv_heads)
    return [Problem(what, where(path), (f"the nearest that do: {_either(counts)}",))]


def _vocabulary(experiment: Experiment, where: Where) -> list[Problem]:
    needed = vocabulary_needed(experiment)
    size = experiment.model.vocab_size
    if size >= needed:
        return []
    path = "experiment.model.vocab_size"
    kind = "bytes" if isinstance(experiment.data.tokenizer, Bytes) else "bpe"
    what = f"{path} = {size} does not cover the {needed} tokens of experiment.data.tokenizer ({kind})"
    details = [f"{path} = {needed} or more"]
    if kind == "bpe" and size >= 257:
        details.append(f"or experiment.data.tokenizer.vocab_size = {size} or less")
    return [Problem(what, where(path), tuple(details))]


def _dropout(experiment: Experiment, where: Where) -> list[Problem]:
    if experiment.model.dropout == 0 or experiment.numerics.attention == "explicit":
        return []
    path = "experiment.model.dropout"
    what = f'{path} = {experiment.model.dropout} cannot go through attention = "sdpa"'
    details = (
        "the fused kernel draws its masks from a global generator, so they would depend on the execution",
        'experiment.numerics.attention = "explicit" draws them by microbatch; or dropout = 0.0',
    )
    return [Problem(what, where(path), details)]


def _warmup(experiment: Experiment, where: Where) -> list[Problem]:
    schedule = experiment.schedule
    if not isinstance(schedule, Cosine):
        return []
    end = experiment.length.steps if schedule.decay_steps is None else schedule.decay_steps
    if schedule.warmup_steps <= end:
        return []
    path = "experiment.schedule.warmup_steps"
    origin = "" if schedule.decay_steps is not None else ", which is length.steps where absent"
    what = f"{path} = {schedule.warmup_steps} is longer than decay_steps = {end}{origin}"
    return [
        Problem(
            what,
            where(path),
            (f"warmup_steps {end} or less, or decay_steps {schedule.warmup_steps} or more",),
        )
    ]


def _sizes(experiment: Experiment, where: Where) -> list[Problem]:
    """Sizes that no tensor index or counter can carry; far above any real run."""
    model, batch = experiment.model, experiment.batch
    limits: list[tuple[str, str, int, int]] = [
        (
            "experiment.model.vocab_size",
            "vocab_size × hidden_size",
            model.vocab_size * model.hidden_size,
            MAX_WEIGHT_ELEMENTS,
        ),
        ("experiment.model.hidden_size", "hidden_size²", model.hidden_size**2, MAX_WEIGHT_ELEMENTS),
        (
            "experiment.model.intermediate_size",
            "hidden_size × intermediate_size",
            model.hidden_size * model.intermediate_size,
            MAX_WEIGHT_ELEMENTS,
        ),
        ("experiment.model.num_layers", "num_layers", model.num_layers, MAX_LAYERS),
        ("experiment.batch.microbatches", "microbatches", batch.microbatches, MAX_MICROBATCHES),
        ("experiment.batch.tokens_per_sequence", "tokens a step", batch.tokens, MAX_STEP_TOKENS),
        (
            "experiment.length.steps",
            "steps × sequences a step",
            experiment.length.steps * batch.sequences,
            MAX_POSITIONS,
        ),
    ]
    return [
        Problem(f"{path} is too large: {meaning} = {size}", where(path), (f"the most is {most}",))
        for path, meaning, size, most in limits
        if size > most
    ]


def _floats(experiment: Experiment, where: Where) -> list[Problem]:
    """Numbers that are infinite, or zero though they must not be, once float32 holds them."""
    model, optimizer = experiment.model, experiment.optimizer
    rate, decay = "experiment.optimizer.lr", "experiment.optimizer.weight_decay"
    # (field, what is computed, its value, whether it may be as small as it likes)
    limits: list[tuple[str, str, float, bool]] = [
        (rate, "lr", optimizer.lr, True),
        (decay, "weight_decay", optimizer.weight_decay, True),
        ("experiment.optimizer.eps", "eps", optimizer.eps, False),
        ("experiment.optimizer.max_grad_norm", "max_grad_norm", optimizer.max_grad_norm, False),
        ("experiment.model.init_std", "init_std", model.init_std, False),
        ("experiment.model.norm_eps", "norm_eps", model.norm_eps, False),
        ("experiment.model.rope_theta", "rope_theta", model.rope_theta, False),
    ]
    if optimizer.lr <= MAX_FLOAT:  # else that is said once
        limits.append((rate, "lr / (1 - beta1)", optimizer.lr / (1 - optimizer.beta1), True))
        if optimizer.weight_decay <= MAX_FLOAT:
            limits.append((decay, "lr × weight_decay", optimizer.lr * optimizer.weight_decay, True))
    problems = []
    for path, meaning, value, may_vanish in limits:
        if value > MAX_FLOAT:
            what = f"{path} is too large for float32: {meaning} = {value:g}"
            problems.append(Problem(what, where(path), (f"the most is {MAX_FLOAT:g}",)))
        elif 0 < value < MIN_FLOAT and not may_vanish:
            what = f"{path} is too small for float32: {meaning} = {value:g}"
            problems.append(Problem(what, where(path), (f"the least is {MIN_FLOAT:g}",)))
    return problems


def _nearest_divisors(of: int, near: int) -> list[int]:
    """The divisors of `of` next to `near`: the largest not above it and the smallest above it.

    Looks at 4,096 values on each side, enough for any network and cheap for absurd ones.
    """
    below = next((value for value in range(min(near, of), max(0, near - 4096), -1) if of % value == 0), None)
    above = next((value for value in range(near + 1, min(of, near + 4096) + 1) if of % value == 0), None)
    return [value for value in (below, above) if value is not None] or [1]


def _either(values: Iterable[int]) -> str:
    return " or ".join(str(value) for value in values)
