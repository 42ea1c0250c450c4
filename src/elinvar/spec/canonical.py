"""The one byte form of an experiment, and the two digests over it.

Nouns: the canonical bytes, the schema number, the table of old meanings. Two experiments that learn
the same have the same bytes: key order, comments, defaults written out or not, `1` for `1.0`, `-0.0`
and the place of the data do not show in them. Refuses an experiment that is not resolved (its data
digest or its decay length still open) and numbers that are not finite: JSON has no text for them,
so two different experiments would share a digest.
"""

import json
import math
from collections.abc import Mapping
from typing import Any

import msgspec
from blake3 import blake3

from elinvar.errors import InvalidInput
from elinvar.identity import Digest, is_digest
from elinvar.spec.experiment import Experiment

SCHEMA = 1
"""The newest schema that this version reads and writes; raised when a field is added or changes its meaning."""

ABSENT: Mapping[int, Mapping[str, object]] = {}
"""By schema number: the fields that came with it, and the value that means what their absence meant before.

A field that holds its old meaning is left out of the canonical bytes, so a new field never moves the
digest of an old experiment, however its default is chosen.
"""


OUTSIDE = ("length.steps", "data.source")
"""The paths that no digest covers: where the run stops, and where the data lies."""


def canonical(experiment: Experiment) -> bytes:
    """The bytes that `experiment_digest` covers: sorted JSON without length and without the data's place."""
    return _enveloped(_learned(experiment))


def experiment_digest(experiment: Experiment) -> Digest:
    """BLAKE3 of the canonical bytes: equal exactly when the same is learned with the same arithmetic."""
    return Digest(blake3(canonical(experiment)).hexdigest())


def math_digest(experiment: Experiment) -> Digest:
    """As `experiment_digest`, without numerics, the batch reduced to sequences a step and tokens a sequence."""
    tree = _learned(experiment)
    del tree["numerics"]
    batch = experiment.batch
    tree["batch"] = {"sequences": batch.sequences, "tokens_per_sequence": batch.tokens_per_sequence}
    return Digest(blake3(_enveloped(tree)).hexdigest())


def resolved_tree(experiment: Experiment) -> dict[str, Any]:
    """The experiment as plain dicts, every default written out, floats as floats, -0.0 as 0.0.

    Raises InvalidInput for a value of a wrong type or range, a number that is not finite, and an
    experiment that `elinvar.spec.read.resolve` has not seen.
    """
    try:
        # Through convert, because a value built in Python may hold 1 where the field says float.
        checked = msgspec.convert(msgspec.to_builtins(experiment), Experiment)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"the experiment holds a wrong value: {error}") from None
    if not is_digest(checked.data.digest):
        raise InvalidInput(
            f"experiment.data.digest is {checked.data.digest!r}: an experiment has no digest before its data has one",
            ["resolve it first: elinvar.spec.read.resolve(experiment, folder)"],
        )
    tree: dict[str, Any] = _normal(msgspec.to_builtins(checked), "experiment")
    return tree


def json_bytes(tree: object) -> bytes:
    """`tree` as JSON with sorted keys, no blanks, ASCII only and floats in their shortest form."""
    text = json.dumps(tree, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return text.encode("ascii")


def lowest_schema(tree: dict[str, Any], absent: Mapping[int, Mapping[str, object]]) -> int:
    """Take fields with their old meaning out of `tree`; the lowest schema that can say what is left."""
    schema = 1
    for version, fields in sorted(absent.items()):
        for path, old_meaning in fields.items():
            *parents, name = path.split(".")
            table: Any = tree
            for parent in parents:
                table = table.get(parent) if isinstance(table, dict) else None
            if not isinstance(table, dict) or name not in table:
                continue
            if table[name] == old_meaning:
                del table[name]
            else:
                schema = version
    return schema


def fill_old_meanings(tree: dict[str, Any], schema: int, absent: Mapping[int, Mapping[str, object]]) -> None:
    """Write into `tree`, which follows `schema`, the meaning that the absence of each newer field had."""
    for version, fields in sorted(absent.items()):
        if version <= schema:
            continue
        for path, old_meaning in fields.items():
            *parents, name = path.split(".")
            table: Any = tree
            for parent in parents:
                table = table.get(parent) if isinstance(table, dict) else None
            if isinstance(table, dict):
                table.setdefault(name, old_meaning)


def _learned(experiment: Experiment) -> dict[str, Any]:
    """The resolved tree without what is outside the digests, and without tables that this empties."""
    tree = resolved_tree(experiment)
    for path in OUTSIDE:
        table, name = path.split(".")
        del tree[table][name]
    return {name: value for name, value in tree.items() if value != {}}


def _enveloped(tree: dict[str, Any]) -> bytes:
    schema = lowest_schema(tree, ABSENT)
    return json_bytes({"schema": schema, "experiment": tree})


def _normal(value: Any, path: str) -> Any:
    """`value` with -0.0 as 0.0; refuses what is not finite and what is still open."""
    if isinstance(value, dict):
        return {key: _normal(part, f"{path}.{key}") for key, part in value.items()}
    if value is None:
        raise InvalidInput(
            f"{path} is still open: an experiment has a digest only when every value is decided",
            ["resolve it first: elinvar.spec.read.resolve(experiment, folder)"],
        )
    if isinstance(value, float):
        if not math.isfinite(value):
            raise InvalidInput(f"{path} is {value}: a finite number is needed")
        return value + 0.0
    return value
