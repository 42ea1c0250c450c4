"""The words around a wrong or a different input: problems, error pages, nearest names, differences.

Nouns: `Problem` (one thing wrong, with its place, the value got, what is allowed, a help that is
real) and the difference of two values (path, a, b). A page shows up to five problems at once.
"""

import difflib
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from elinvar.errors import InvalidInput
from elinvar.spec.canonical import OUTSIDE, experiment_digest
from elinvar.spec.experiment import Experiment

MAX_PROBLEMS = 5


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


def refused_continuation(folder: str, recorded: Experiment, asked: Experiment, step: int) -> InvalidInput:
    """The page that refuses to continue `folder`, newest generation at `step`, with another experiment."""
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
        f"continue as it was: elinvar resume {folder}",
        f"branch off instead: elinvar train RUN.toml … --fork {folder}@{step}",
    ]
    return InvalidInput(f"{folder} holds a run that learns something else", lines)


def _plain(name: str) -> str:
    return name.lower().replace("-", "_")
