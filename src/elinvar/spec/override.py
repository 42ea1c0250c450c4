"""Overrides: TOML assignments on the command line, in the grammar of the run file.

Noun: the override, `path=value`. The path may be full or a suffix that fits one key only. The value
is TOML; what is no TOML value is taken as a string where the field is a string or an enum, because a
shell strips quotes. An inline table replaces the whole table. Refuses an ambiguous path, a key set
twice, and TOML values of another type (`data.source=123` needs quotes, 1.5 is no integer).
"""

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import inspect

from elinvar.spec.explain import Problem, nearest, synonym
from elinvar.spec.fields import Field, Leaf, Table, all_paths, fields_at, run_file
from elinvar.spec.layers import BASE, MACHINE, Merged, absolute_paths, forget, lay

MAX_SHOWN = 200
"""Characters of an override that origins and errors repeat."""


class Override(NamedTuple):
    """One assignment: the text given, the full path, the value."""

    text: str
    path: tuple[str, ...]
    value: Any

    @property
    def where(self) -> str:
        """How origins and errors name it."""
        return f"override {_one_line(self.text)}"


def parse_overrides(texts: Sequence[str], problems: list[Problem]) -> list[Override]:
    """The overrides in `texts` that can be read; appends what is wrong with the others to `problems`."""
    overrides: list[Override] = []
    for text in texts:
        override = _parse(text, problems)
        if override is None:
            continue
        for other in overrides:
            shorter = min(len(other.path), len(override.path))
            if other.path[:shorter] == override.path[:shorter]:
                what = f"{'.'.join(override.path[:shorter])} is set twice"
                problems.append(Problem(what, override.where, (f"and by {other.where}",)))
        overrides.append(override)
    return overrides


def lay_overrides(below: Merged, overrides: Sequence[Override]) -> None:
    """Lay `overrides` over `below` as one layer: their order does not matter."""
    tree: dict[str, Any] = {}
    places: dict[str, str] = {}
    for override in overrides:
        table = tree
        for depth, name in enumerate(override.path[:-1], start=1):
            table = table.setdefault(name, {})
            places.setdefault(".".join(override.path[:depth]), override.where)
        table[override.path[-1]] = override.value
        _places_of(override.value, override.path, override.where, places)
        if isinstance(override.value, dict):
            _take_out(below, override.path)
    absolute_paths(tree, Path.cwd())
    lay(run_file(), below, tree, places)


def _places_of(value: object, path: tuple[str, ...], where: str, places: dict[str, str]) -> None:
    places[".".join(path)] = where
    if isinstance(value, dict):
        for name, inner in value.items():
            _places_of(inner, (*path, name), where, places)


def _take_out(below: Merged, path: tuple[str, ...]) -> None:
    table: Any = below.tree
    for name in path[:-1]:
        table = table.get(name) if isinstance(table, dict) else None
    if isinstance(table, dict):
        table.pop(path[-1], None)
    forget(below.origins, ".".join(path))


def _parse(text: str, problems: list[Problem]) -> Override | None:
    where = f"override {_one_line(text)}"
    key, equals, value_text = text.partition("=")
    if not equals:
        problems.append(Problem("an override is an assignment", where, ("expected path=value",)))
        return None
    try:
        path = _key_path(key)
    except (tomllib.TOMLDecodeError, RecursionError):
        problems.append(Problem(f"{key!r} is no key path", where, ("expected names joined by dots",)))
        return None
    full = _full_path(path, where, problems)
    if full is None:
        return None
    value = _value(full, value_text.strip(), where, problems)
    return None if value is None else Override(text, full, value)


def _one_line(text: str) -> str:
    line = text.replace("\r", "\\r").replace("\n", "\\n")
    return line if len(line) <= MAX_SHOWN else f"{line[: MAX_SHOWN - 1]}…"


def _key_path(key: str) -> tuple[str, ...]:
    table: Any = tomllib.loads(f"{key} = 0") if "\n" not in key else {}
    path: list[str] = []
    while isinstance(table, dict):
        if len(table) != 1:
            raise tomllib.TOMLDecodeError("not one key")
        ((name, table),) = table.items()
        path.append(name)
    return tuple(path)


def _full_path(path: tuple[str, ...], where: str, problems: list[Problem]) -> tuple[str, ...] | None:
    """The one path of the run file that `path` is, or ends; a problem where there is none or several."""
    asked = ".".join(path)
    if asked in all_paths() or asked == MACHINE:
        return path
    fitting = [known for known in all_paths() if known.endswith(f".{asked}")]
    if len(fitting) == 1:
        return tuple(fitting[0].split("."))
    if fitting:
        problems.append(
            Problem(f"{asked} fits more than one key", where, (f"write one of: {', '.join(fitting)}",))
        )
        return None
    problems.append(Problem(f"no such key: {asked}", where, _nearest_path(path)))
    return None


def _nearest_path(path: tuple[str, ...]) -> tuple[str, ...]:
    """A line that names the known path nearest to `path`: by its last name within its table, else anywhere."""
    if path == (BASE,):
        return ("base belongs in the run file: a file that inherits says base = ... itself",)
    known_as = synonym(path[-1])
    if known_as is not None:
        return (known_as,)
    parents = [known.rpartition(".") for known in all_paths()]
    table = ".".join(path[:-1])
    siblings = {name: f"{parent}.{name}" for parent, _, name in parents if _ends_with(parent, table)}
    close = nearest(path[-1], siblings)
    if close is not None:
        return (f"the nearest is {siblings[close]}",)
    same_name = [known for known in all_paths() if known.rpartition(".")[2] == path[-1]]
    if same_name:
        return (f"a key of this name exists: {', '.join(same_name)}",)
    asked = ".".join(path)
    suffixes = {".".join(known.split(".")[-len(path) :]): known for known in all_paths()}
    close = nearest(asked, suffixes)
    return () if close is None else (f"the nearest is {suffixes[close]}",)


def _ends_with(parent: str, table: str) -> bool:
    return not table or parent == table or parent.endswith(f".{table}")


def _value(path: tuple[str, ...], text: str, where: str, problems: list[Problem]) -> Any:
    """The value of `text` for the field at `path`; None after a problem."""
    name = ".".join(path)
    fields: tuple[Field, ...] = fields_at(path)
    takes_text = path == (MACHINE,) or any(isinstance(field, Leaf) and field.takes_text for field in fields)
    if not text:
        problems.append(Problem(f"{name} is given no value", where, ('an empty string is written ""',)))
        return None
    try:
        parsed = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):  # TOMLDecodeError, and integers of thousands of digits
        parsed = {}
    if list(parsed) != ["value"]:
        if takes_text:
            return text
        problems.append(Problem(f"{text} is no TOML value", where, _help_with_no_toml(name, text, fields)))
        return None
    value = parsed["value"]
    only_text = takes_text and not _accepts_more_than_text(fields)
    if only_text and not isinstance(value, str | dict | list):
        quoted = f"{name}='\"{text}\"'"
        details = (f"{text} is {_type_name(value)} in TOML", f"if the text is meant, write quotes: {quoted}")
        problems.append(Problem(f"{name} is a string", where, details))
        return None
    return value


def _help_with_no_toml(name: str, text: str, fields: tuple[Field, ...]) -> tuple[str, ...]:
    table = next((field for field in fields if isinstance(field, Table)), None)
    if table is None:
        return ("expected a TOML value, as 3, 0.1, true",)
    if text in table.members:
        return (f"{name} is a table; choose a kind with {name}.kind={text}",)
    return (f"{name} is a table; the shell needs quotes around it: '{name}={{key=1, name=\"text\"}}'",)


def _accepts_more_than_text(fields: tuple[Field, ...]) -> bool:
    types = [kind for field in fields if isinstance(field, Leaf) for kind in field.types]
    for kind in types:
        if isinstance(kind, inspect.LiteralType):
            if not all(isinstance(value, str) for value in kind.values):
                return True
        elif not isinstance(kind, inspect.StrType | inspect.NoneType):
            return True
    return False


def _type_name(value: object) -> str:
    names: dict[type, str] = {bool: "a boolean", int: "an integer", float: "a float"}
    return names.get(type(value), "a date or time")
