"""From a run file or preset, and overrides, to a resolved experiment and execution.

Nouns: `Reading` (the two values, who set each path) and resolving (what a file may leave open is
decided and written out: the data's digest, format and absolute place, the decay length). Everything
is checked here, up to five problems a page; nothing is guessed from the machine.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from elinvar.errors import InvalidInput
from elinvar.identity import is_digest
from elinvar.spec import canonical
from elinvar.spec.check import complete, to_value
from elinvar.spec.consistency import execution_problems, experiment_problems
from elinvar.spec.data import Data
from elinvar.spec.execution import Execution
from elinvar.spec.experiment import Experiment
from elinvar.spec.explain import Problem, flat, nearest, page, toml_text
from elinvar.spec.fields import Table, run_file
from elinvar.spec.layers import MACHINE, Merged, absolute_source, merged_files, short_name
from elinvar.spec.override import Override, lay_overrides, parse_overrides
from elinvar.spec.schedule import Cosine
from elinvar.spec.source import content_digest, is_builtin

Where = Callable[[str], str]


class Reading(Struct, frozen=True, kw_only=True):
    """A run file read: `name` is the preset or the file without its ending, and names run folders.

    `origins` says of each path `run.toml:9:1`, `override …`, `default` or `resolved: …`.

    `machine` is a machine's name or the absolute path of a file that describes it; None where the
    run file leaves it open. `notes` are for the user: keys that a change of kind left behind.
    """

    name: str
    experiment: Experiment
    execution: Execution
    machine: str | None
    origins: dict[str, str]
    notes: tuple[str, ...] = ()


def read(source: str, overrides: Sequence[str] = (), *, or_folder: bool = False) -> Reading:
    """The preset or run file `source` under `overrides`, checked and resolved.

    `or_folder` only adds run folders to what the error of a missing `source` says is allowed.
    Raises InvalidInput with up to five problems: where each is, the value got, what is allowed.
    """
    problems: list[Problem] = []
    parsed = parse_overrides(overrides, problems)
    merged = merged_files(source, or_folder=or_folder)
    lay_overrides(merged, parsed)
    machine = _machine(merged, problems)
    unknown = {name: value for name, value in merged.tree.items() if name not in ("experiment", "execution")}
    _refuse_unknown_tables(unknown, merged.where, problems)
    trees = _checked(merged, problems)
    if problems:
        raise page(problems)
    experiment = to_value(trees["experiment"], Experiment)
    execution = to_value(trees["execution"], Execution)
    problems = [
        *experiment_problems(experiment, merged.where),
        *execution_problems(execution, merged.where),
    ]
    if problems:
        raise page(problems)
    resolved = _resolved(experiment, Path.cwd(), merged.where)
    return Reading(
        name=short_name(source),
        experiment=resolved,
        execution=execution,
        machine=machine,
        origins=_origins(experiment, resolved, execution, merged.origins),
        notes=tuple(merged.notes),
    )


def resolve(experiment: Experiment, folder: str | Path) -> Experiment:
    """`experiment` with its data's digest, format and absolute place, and its decay length, written out.

    A relative data source is relative to `folder`. Raises InvalidInput where the experiment
    contradicts itself, the data cannot be read, or a written digest is not that of the data.
    """
    tree = msgspec.to_builtins(experiment)
    problems: list[Problem] = []
    table = run_file().members[None].fields["experiment"]
    assert isinstance(table, Table)
    tree = complete(table, _without_absent(tree), "experiment", _in_python, problems)
    if not problems:
        experiment = to_value(tree, Experiment)
        problems = experiment_problems(experiment, _in_python)
    if problems:
        raise page(problems)
    return _resolved(experiment, Path(folder), _in_python)


def with_overrides(execution: Execution, overrides: Sequence[str]) -> Execution:
    """`execution` under `overrides`, of which none may touch the experiment."""
    problems: list[Problem] = []
    parsed = parse_overrides(overrides, problems)
    problems += [_not_execution(override) for override in parsed if override.path[0] != "execution"]
    if problems:
        raise page(problems)
    merged = Merged(
        "the last attempt", {"execution": _without_absent(msgspec.to_builtins(execution))}, {}, []
    )
    lay_overrides(merged, parsed)
    table = run_file().members[None].fields["execution"]
    assert isinstance(table, Table)
    tree = complete(table, merged.tree["execution"], "execution", merged.where, problems)
    if problems:
        raise page(problems)
    changed: Execution = to_value(tree, Execution)
    problems = execution_problems(changed, merged.where)
    if problems:
        raise page(problems)
    return changed


def experiment_json(experiment: Experiment) -> bytes:
    """What `experiment.json` holds: the schema, both digests and the whole experiment, sorted, one line."""
    tree = canonical.resolved_tree(experiment)
    envelope = {
        "schema": canonical.SCHEMA,
        "experiment_digest": canonical.experiment_digest(experiment),
        "math_digest": canonical.math_digest(experiment),
        "experiment": tree,
    }
    return canonical.json_bytes(envelope) + b"\n"


def parse_experiment(data: bytes) -> Experiment:
    """The experiment of an `experiment.json`.

    Raises InvalidInput for text that is none, for a newer schema, and where the digests that it
    names are not those of the experiment that it holds.
    """
    try:
        envelope = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"experiment.json is not JSON: {error}") from None
    if not isinstance(envelope, dict) or not isinstance(envelope.get("experiment"), dict):
        raise InvalidInput("experiment.json holds no experiment")
    schema = envelope.get("schema")
    if type(schema) is not int or schema < 1:
        raise InvalidInput(
            f"experiment.json has schema {schema!r}: expected an integer from 1 to {canonical.SCHEMA}"
        )
    if schema > canonical.SCHEMA:
        raise InvalidInput(
            f"experiment.json has schema {schema}, written by a newer elinvar; this one reads up to {canonical.SCHEMA}",
            ["update elinvar to read it"],
        )
    tree = envelope["experiment"]
    canonical.fill_old_meanings(tree, schema, canonical.ABSENT)
    try:
        experiment = msgspec.convert(tree, Experiment)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"experiment.json does not hold a valid experiment: {error}") from None
    digests = {
        "experiment_digest": canonical.experiment_digest(experiment),
        "math_digest": canonical.math_digest(experiment),
    }
    for name, digest in digests.items():
        if envelope.get(name) != digest:
            raise InvalidInput(
                f"experiment.json names {name} {envelope.get(name)!r}, but what it holds has {digest}",
                ["the file was changed after the run was created; restore it from a copy"],
            )
    return experiment


def _machine(merged: Merged, problems: list[Problem]) -> str | None:
    """The machine's name or file; a [machine] table is read from the run file itself."""
    value = merged.tree.pop(MACHINE, None)
    if value is None:
        return None
    if isinstance(value, str) and value:
        return value
    if isinstance(value, dict):
        place = merged.where(MACHINE)
        name = place.rsplit(":", 2)[0]
        if Path(name).is_file():
            return str(Path(name).absolute())
        problems.append(
            Problem("a machine table must stand in a run file", place, ("or name a machine file",))
        )
        return None
    details = ("expected a machine's name, a file, or a table [machine]",)
    problems.append(Problem(f"machine cannot be {toml_text(value)}", merged.where(MACHINE), details))
    return None


def _refuse_unknown_tables(unknown: dict[str, Any], where: Where, problems: list[Problem]) -> None:
    allowed = ["experiment", "execution", MACHINE, "base"]
    for name in unknown:
        close = nearest(name, allowed)
        help_line = f"the nearest is {close}" if close else f"known here: {', '.join(allowed)}"
        problems.append(Problem(f"no such key: {name}", where(name), (help_line,)))


def _checked(merged: Merged, problems: list[Problem]) -> dict[str, dict[str, Any]]:
    trees: dict[str, dict[str, Any]] = {}
    for name, table in run_file().members[None].fields.items():
        assert isinstance(table, Table)
        if name not in merged.tree and table.required:
            problems.append(
                Problem(f"table {name} is missing", merged.name, ("start from one: elinvar init",))
            )
            continue
        trees[name] = complete(table, merged.tree.get(name, {}), name, merged.where, problems)
    return trees


def _resolved(experiment: Experiment, folder: Path, where: Where) -> Experiment:
    schedule = experiment.schedule
    if isinstance(schedule, Cosine) and schedule.decay_steps is None:
        schedule = msgspec.structs.replace(schedule, decay_steps=experiment.length.steps)
    return msgspec.structs.replace(
        experiment, data=_resolved_data(experiment.data, folder, where), schedule=schedule
    )


def _resolved_data(data: Data, folder: Path, where: Where) -> Data:
    path = "experiment.data.digest"
    if data.digest and not is_digest(data.digest):
        details = (
            f"got {toml_text(data.digest)}",
            "expected 64 lowercase hexadecimal digits, or no key at all",
        )
        raise page([Problem(f"{path} is no digest", where(path), details)])
    if not data.source:
        raise page([Problem("experiment.data.source is empty", where("experiment.data.source"))])
    source = absolute_source(data.source, folder)
    try:
        digest = content_digest(source)
    except InvalidInput as error:
        raise InvalidInput(error.message, [f"at {where('experiment.data.source')}", *error.lines]) from None
    if data.digest and data.digest != digest:
        lines = (
            f"written   {data.digest}",
            f"content   {digest}",
            "the data changed, or the source is another one",
        )
        raise page([Problem(f"{path} is not the digest of {source}", where(path), lines)])
    text_format = data.format
    if text_format == "auto":
        text_format = _format_of(source)
    return msgspec.structs.replace(data, source=source, digest=digest, format=text_format)


def _format_of(source: str) -> Literal["text", "jsonl"]:
    """By the ending of a file's name; a store folder holds tokens already, whatever it is called."""
    if is_builtin(source) or Path(source).is_dir():
        return "text"
    return "jsonl" if source.endswith((".jsonl", ".ndjson")) else "text"


def _origins(
    written: Experiment, resolved: Experiment, execution: Execution, places: dict[str, str]
) -> dict[str, str]:
    """The origin of every leaf of the two values."""
    before = {f"experiment.{path}": value for path, value in flat(written).items()}
    origins: dict[str, str] = {}
    for path, value in flat(resolved).items():
        full = f"experiment.{path}"
        if full in places:
            origins[full] = places[full]
        elif before.get(full) != value:
            origins[full] = f"resolved: {_RESOLVED[full]}"
        else:
            origins[full] = "default"
    for path in flat(execution):
        full = f"execution.{path}"
        origins[full] = places.get(full, "default")
    return origins


_RESOLVED = {
    "experiment.data.digest": "BLAKE3 of the content",
    "experiment.data.format": "by the name of the source",
    "experiment.data.source": "made absolute",
    "experiment.schedule.decay_steps": "experiment.length.steps",
}


def _without_absent(tree: Any) -> Any:
    """`tree` without None: what a run file cannot write."""
    if isinstance(tree, dict):
        return {name: _without_absent(value) for name, value in tree.items() if value is not None}
    return tree


def _in_python(path: str) -> str:
    return f"{path} of the value given"


def _not_execution(override: Override) -> Problem:
    path = ".".join(override.path)
    if path == "experiment.data.source":
        details = (
            "where the data lie is no part of the experiment, but a run file names it",
            f"if they moved: elinvar train RUN.toml {override.text} --run DIR goes on with the run",
        )
    else:
        details = (
            "continuing a run changes only how it is computed: execution.…",
            "to learn something else: train --fork",
        )
    return Problem(f"{path} cannot change in a run that continues", override.where, details)
