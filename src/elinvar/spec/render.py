"""A resolved experiment and execution as the text of a run file.

Noun: the text, with every default written out, that `read` takes back to the same two values. Each
line may carry its origin as a comment.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from elinvar.spec.execution import Execution
from elinvar.spec.experiment import Experiment
from elinvar.spec.explain import quoted, toml_text

MAX_ALIGNED = 48
"""Longer lines (a digest, a path) do not push the comments of all others to the right."""


def run_file_text(
    experiment: Experiment,
    execution: Execution | None = None,
    machine: str | None = None,
    origins: Mapping[str, str] | None = None,
) -> str:
    """TOML text of the values given; with `origins` (by dotted path) each line says who set it."""
    lines: list[str] = []
    if machine is not None:
        lines += [f"machine = {quoted(machine)}", ""]
    lines += _tables("experiment", experiment, origins or {})
    if execution is not None:
        lines += ["", *_tables("execution", execution, origins or {})]
    return "\n".join(lines) + "\n"


def _tables(name: str, value: Struct, origins: Mapping[str, str]) -> list[str]:
    blocks: list[list[tuple[str, str]]] = []
    _collect(name, msgspec.to_builtins(value), origins, blocks)
    texts = [text for block in blocks for text, _ in block]
    width = max(len(text) for text in texts if len(text) <= MAX_ALIGNED)
    lines: list[str] = []
    for block in blocks:
        lines += ["", *(f"{text.ljust(width)}   # {origin}" if origin else text for text, origin in block)]
    return lines[1:]


def _collect(
    path: str, tree: Mapping[str, Any], origins: Mapping[str, str], blocks: list[list[tuple[str, str]]]
) -> None:
    """Append the table at `path` and those below it; a value of None is open and has no line."""
    block = [(f"[{path}]", "")]
    for name, value in tree.items():
        if not isinstance(value, dict) and value is not None:
            block.append((f"{name} = {toml_text(value)}", origins.get(f"{path}.{name}", "")))
    if len(block) > 1:
        blocks.append(block)
    for name, value in tree.items():
        if isinstance(value, dict):
            _collect(f"{path}.{name}", value, origins, blocks)
