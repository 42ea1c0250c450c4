"""The words around a wrong or a different input: problems, error pages, nearest names, differences.

Nouns: `Problem` (one thing wrong, with its place, the value got, what is allowed, a help that is
real) and the difference of two values (path, a, b). A page shows up to five problems at once.
"""

import difflib
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from elinvar.errors import InvalidInput
from elinvar.spec.canonical import OUTSIDE, experiment_digest, math_digest
from elinvar.spec.experiment import Experiment

MAX_PROBLEMS = 5

SYNONYMS: Mapping[str, tuple[str, ...]] = {
    "learning_rate": ("experiment.optimizer.lr",),
    "max_lr": ("experiment.optimizer.lr",),
    "betas": ("experiment.optimizer.beta1", "experiment.optimizer.beta2"),
    "wd": ("experiment.optimizer.weight_decay",),
    "grad_clip": ("experiment.optimizer.max_grad_norm",),
    "clip_grad": ("experiment.optimizer.max_grad_norm",),
    "clip_grad_norm": ("experiment.optimizer.max_grad_norm",),
    "gradient_clip_val": ("experiment.optimizer.max_grad_norm",),
    "batch_size": ("experiment.batch.microbatches", "experiment.batch.sequences_per_microbatch"),
    "global_batch_size": ("experiment.batch.microbatches", "experiment.batch.sequences_per_microbatch"),
    "micro_batch_size": ("experiment.batch.sequences_per_microbatch",),
    "gradient_accumulation_steps": ("experiment.batch.microbatches",),
    "grad_accum": ("experiment.batch.microbatches",),
    "seq_len": ("experiment.batch.tokens_per_sequence",),
    "seq_length": ("experiment.batch.tokens_per_sequence",),
    "sequence_length": ("experiment.batch.tokens_per_sequence",),
    "max_seq_len": ("experiment.batch.tokens_per_sequence",),
    "block_size": ("experiment.batch.tokens_per_sequence",),
    "context_length": ("experiment.batch.tokens_per_sequence",),
    "epochs": ("experiment.length.steps",),
    "num_epochs": ("experiment.length.steps",),
    "max_steps": ("experiment.length.steps",),
    "max_iters": ("experiment.length.steps",),
    "num_steps": ("experiment.length.steps",),
    "warmup": ("experiment.schedule.warmup_steps",),
    "warmup_iters": ("experiment.schedule.warmup_steps",),
    "n_layer": ("experiment.model.num_layers",),
    "n_layers": ("experiment.model.num_layers",),
    "num_hidden_layers": ("experiment.model.num_layers",),
    "n_head": ("experiment.model.num_heads",),
    "n_heads": ("experiment.model.num_heads",),
    "num_attention_heads": ("experiment.model.num_heads",),
    "n_kv_heads": ("experiment.model.num_kv_heads",),
    "num_key_value_heads": ("experiment.model.num_kv_heads",),
    "d_model": ("experiment.model.hidden_size",),
    "n_embd": ("experiment.model.hidden_size",),
    "embedding_dim": ("experiment.model.hidden_size",),
    "d_ff": ("experiment.model.intermediate_size",),
    "ffn_dim": ("experiment.model.intermediate_size",),
    "rms_norm_eps": ("experiment.model.norm_eps",),
    "tie_word_embeddings": ("experiment.model.tie_embeddings",),
    "dtype": ("experiment.numerics.precision",),
    "mixed_precision": ("experiment.numerics.precision",),
    "dataset": ("experiment.data.source",),
    "num_workers": ("execution.input.workers",),
    "world_size": ("execution.ranks",),
    "nproc_per_node": ("execution.ranks",),
    "zero_stage": ("execution.sharding",),
    "save_every": ("execution.checkpoint.every",),
    "save_steps": ("execution.checkpoint.every",),
    "eval_every": ("execution.record.evaluate_every",),
    "eval_interval": ("execution.record.evaluate_every",),
    "eval_steps": ("execution.record.evaluate_every",),
}
"""What other programs call a key, and the keys here whose product or pair it is."""


class Problem(NamedTuple):
    """One thing wrong: what, where (`run.toml:9:1` or `override "…"`), the lines below it."""

    what: str
    where: str
    details: tuple[str, ...] = ()


def nearest(name: str, candidates: Iterable[str]) -> str | None:
    """The candidate that `name` most likely meant, or None when nothing is close."""
    plain = {_plain(candidate): candidate for candidate in candidates}
    close = difflib.get_close_matches(_plain(name), list(plain), n=1, cutoff=0.6)
    return plain[close[0]] if close else None


def synonym(name: str) -> str | None:
    """The line for a key that other programs call `name`; None where none is known."""
    paths = SYNONYMS.get(_plain(name))
    return None if paths is None else f"here it is {' and '.join(paths)}"


def counted(number: int, one: str, many: str = "") -> str:
    """`number` with its noun: 1 sum, 2 sums, 2 processes."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def page(problems: Sequence[Problem]) -> InvalidInput:
    """The error that shows `problems`: one with its details, or up to five below a count."""
    if len(problems) == 1:
        problem = problems[0]
        return InvalidInput(problem.what, [f"at {problem.where}", *problem.details])
    lines: list[str] = []
    for number, problem in enumerate(problems[:MAX_PROBLEMS], start=1):
        lines += [f"{number}. {problem.what}", f"   at {problem.where}"]
        lines += [f"   {detail}" for detail in problem.details]
    if len(problems) > MAX_PROBLEMS:
        lines.append(f"and {len(problems) - MAX_PROBLEMS} more")
    return InvalidInput(f"{len(problems)} problems in the input", lines)


def toml_text(value: object) -> str:
    """`value` as TOML writes it; tables and what TOML does not know in words."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, int) and value.bit_length() > 128:
        return f"an integer of {value.bit_length()} bits"
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list):
        return "an array"
    return "(absent)" if value is None else str(value)


def quoted(text: str) -> str:
    """`text` as a TOML basic string on one line."""
    escapes = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r", "\b": "\\b", "\f": "\\f"}
    out = (
        escapes.get(char) or (f"\\u{ord(char):04X}" if ord(char) < 32 or ord(char) == 127 else char)
        for char in text
    )
    return '"' + "".join(out) + '"'


def got(value: object) -> str:
    """`value` and its type, for the line that says what was found."""
    names = {bool: "a boolean", int: "an integer", float: "a float", str: "a string"}
    if type(value) in names:
        return f"got {toml_text(value)}, {names[type(value)]}"
    if isinstance(value, dict | list):
        return f"got {toml_text(value)}"
    return f"got {value}, a date or time"


def differences(a: Struct, b: Struct) -> list[tuple[str, Any, Any]]:
    """(path, value in a, value in b) of every value that differs; None where a side has no such key.

    Paths are relative to the two values; numbers compare by value, so 1 and 1.0 do not differ.
    """
    flat_a, flat_b = flat(a), flat(b)
    paths = dict.fromkeys([*flat_a, *flat_b])
    return [
        (path, flat_a.get(path), flat_b.get(path))
        for path in paths
        if flat_a.get(path) != flat_b.get(path) or (path in flat_a) != (path in flat_b)
    ]


def flat(value: Struct) -> dict[str, Any]:
    """Every leaf of `value` by its dotted path, `kind` of tagged structs included."""
    leaves: dict[str, Any] = {}

    def visit(part: Any, path: str) -> None:
        if not isinstance(part, dict):
            leaves[path] = part
            return
        for name, inner in part.items():
            visit(inner, f"{path}.{name}" if path else name)

    visit(msgspec.to_builtins(value), "")
    return leaves


def refused_continuation(
    folder: str, recorded: Experiment, asked: Experiment, step: int, command: Sequence[str] = ()
) -> InvalidInput:
    """The page that refuses to continue `folder`, newest generation at `step`, with another experiment.

    `step` 0 is no generation, so nothing to fork. `command` are the words that the user typed, the
    program's name first; the line that forks repeats them where they began a training.
    """
    changed = [each for each in differences(recorded, asked) if each[0] not in OUTSIDE]
    width = max((len(path) for path, _, _ in changed), default=0)
    lines = [
        f"experiment.{path.ljust(width)}   run {toml_text(old)}   asked {toml_text(new)}"
        for path, old, new in changed
    ]
    for path, old, _ in changed:
        if path == "schedule.decay_steps" and old is not None:
            lines.append(f"an absent decay_steps is length.steps; to go on with the run's: decay_steps={old}")
    lines += [
        f"digest of the run   {experiment_digest(recorded)}",
        f"digest asked for    {experiment_digest(asked)}",
        f"continue as it was: elinvar resume {shlex.quote(folder)}",
    ]
    same_math = math_digest(recorded) == math_digest(asked)
    if same_math:
        lines.append(f"go on all the same, recorded in the attempt: {_typed(command, '--run', folder)}"
                     " --accept same-math")  # fmt: skip
    if step:
        lines.append(f"branch off instead: {_typed(command, '--fork', f'{folder}@{step}')} --run OTHER")
    else:
        lines.append(f"start it anew: {_typed(command, '--run', 'OTHER')}")
    if same_math:
        return InvalidInput(f"continuing {folder} so gives the same math, not the same bits", lines)
    return InvalidInput(f"{folder} holds a run that learns something else", lines)


def _typed(command: Sequence[str], option: str, value: str) -> str:
    """The training that `command` asked for, in another folder or from another state."""
    words = list(command[1:])
    if words[:1] != ["train"]:
        words = ["train", "RUN.toml"]
    kept: list[str] = []
    rest = iter(words)
    for word in rest:
        if word in ("--run", "--fork", "--accept"):
            next(rest, None)
        elif not word.startswith(("--run=", "--fork=", "--accept=")):
            kept.append(word)
    return shlex.join(["elinvar", *kept, option, value])


def _plain(name: str) -> str:
    return name.lower().replace("-", "_")
