"""From files and overrides to one merged tree in which each key knows who set it.

Nouns: the layer (one file's tables with the place of each key) and the merged tree. A run file may
inherit (`base = "parent.toml"`, relative to itself, any depth); the nearer layer wins key by key.
Where it chooses another `kind`, keys that only the old kind knows are left behind, and a note says
so. Refuses cycles, missing files, and text that is not TOML, naming file, line and column.
"""

import os
import re
import tomllib
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple

from elinvar.errors import InvalidInput
from elinvar.spec.explain import Problem, nearest, page, toml_text
from elinvar.spec.fields import KIND, Table, run_file
from elinvar.spec.positions import Mark, marks, positions
from elinvar.spec.source import is_builtin, missing_file_hint

BASE = "base"
RUN_FOLDER_MARK = "experiment.json"
"""The file that makes a folder a run folder (`elinvar.record.folder`, which comes after this package)."""
MACHINE = "machine"


class Layer(NamedTuple):
    """One file: its tables, and the place of each dotted path in it."""

    name: str
    tree: dict[str, Any]
    places: dict[str, str]


class Merged(NamedTuple):
    """All layers laid over one another, lowest first; `origins` names who set each dotted path."""

    name: str
    tree: dict[str, Any]
    origins: dict[str, str]
    notes: list[str]

    def where(self, path: str) -> str:
        """Who set `path`, or the nearest table around it, or the run file itself."""
        while path:
            if path in self.origins:
                return self.origins[path]
            path = path.rpartition(".")[0]
        return self.name


def preset_names() -> list[str]:
    """The presets that come with the package."""
    names = (entry.name for entry in (files("elinvar.spec") / "presets").iterdir())
    return sorted(name.removesuffix(".toml") for name in names if name.endswith(".toml"))


def preset_text(name: str) -> str:
    """The run file of a preset, with its comments."""
    return (files("elinvar.spec") / "presets" / f"{name}.toml").read_text(encoding="utf-8")


def merged_files(source: str, *, or_folder: bool = False) -> Merged:
    """The preset or run file `source` over its bases, nothing checked yet but that it is TOML.

    `or_folder` says that the caller takes run folders too: an error for a missing `source` names them.
    """
    layers: list[Layer] = []
    seen: list[str] = []
    following: str | None = source
    folder = Path()
    asked_at: str | None = None
    while following is not None:
        layer, identity, folder = _open(following, folder, asked_at, or_folder and not layers)
        if identity in seen:
            chain = " → ".join([*seen[seen.index(identity) :], identity])
            raise InvalidInput(f"{asked_at}: base goes round in a circle", [chain])
        seen.append(identity)
        layers.append(layer)
        following = layer.tree.pop(BASE, None)
        asked_at = layer.places.get(BASE)
        if following is not None and (not isinstance(following, str) or not following):
            raise page(
                [Problem(f"base cannot be {toml_text(following)}", str(asked_at), ("expected a file name",))]
            )
    merged = Merged(layers[0].name, {}, {}, [])
    for layer in reversed(layers):
        lay(run_file(), merged, layer.tree, layer.places)
    return merged


def short_name(source: str) -> str:
    """The short name of a run file or preset, which names its run folders."""
    return source if not _is_file_name(source) and source in preset_names() else Path(source).stem


def lay(table: Table, below: Merged, above: dict[str, Any], places: dict[str, str]) -> None:
    """Lay the tables `above`, with the place of each of their paths, over `below`, in place."""
    _lay(table, below.tree, above, "", below, places)


def _lay(
    table: Table | None,
    tree: dict[str, Any],
    above: dict[str, Any],
    path: str,
    below: Merged,
    places: dict[str, str],
) -> None:
    if table is not None and table.tagged and KIND in above:
        _leave_behind(table, tree, above, path, below)
    member = None if table is None else table.member(above.get(KIND, tree.get(KIND)))
    for name, value in above.items():
        inner = f"{path}.{name}" if path else name
        known = None if member is None else member.fields.get(name)
        if isinstance(value, dict) and isinstance(known, Table):
            held = tree.get(name)
            if not isinstance(held, dict):
                held = tree[name] = {}
            _set_origin(below, inner, places.get(inner))
            _lay(known, held, value, inner, below, places)
        else:
            tree[name] = value
            forget(below.origins, inner)
            for written, place in places.items():
                if written == inner or written.startswith(f"{inner}."):
                    below.origins[written] = place


def forget(origins: dict[str, str], path: str) -> None:
    """Drop the origins of `path` and of everything below it."""
    for known in [known for known in origins if known == path or known.startswith(f"{path}.")]:
        del origins[known]


def _set_origin(below: Merged, path: str, place: str | None) -> None:
    if place is not None:
        below.origins[path] = place


def _leave_behind(
    table: Table, tree: dict[str, Any], above: dict[str, Any], path: str, below: Merged
) -> None:
    """Drop from `tree` what the kind that `above` chooses does not know; what it knows too is kept."""
    new = table.member(above[KIND])
    old = table.member(tree.get(KIND))
    if new is None or new is old:
        return
    for name in [name for name in tree if name != KIND and name not in new.fields]:
        if old is not None and name not in old.fields:
            continue  # Wrong for both kinds: stays, so that the check names it.
        inner = f"{path}.{name}"
        below.notes.append(
            f"{inner} = {toml_text(tree[name])} ({below.where(inner)}) is left out: "
            f"kind = {toml_text(above[KIND])} has no such key"
        )
        del tree[name]
        forget(below.origins, inner)


def _is_file_name(source: str) -> bool:
    return source.endswith(".toml") or "/" in source or os.sep in source


def _open(source: str, folder: Path, asked_at: str | None, or_folder: bool) -> tuple[Layer, str, Path]:
    """(layer, what identifies it, the folder its own paths are relative to) of a preset or a file."""
    if not _is_file_name(source) and source in preset_names():
        name = f"preset {source}"
        return _parse(preset_text(source), name, Path()), name, Path()
    path = folder / _expanded(source)
    layer = _parse(_text_of(path, source, asked_at, or_folder), str(path), path.parent)
    return layer, os.path.realpath(path), path.parent


def _text_of(path: Path, source: str, asked_at: str | None, or_folder: bool) -> str:
    at = f"{asked_at}: " if asked_at else ""
    if not source:
        raise InvalidInput(f"{at}the name of the run file is empty", [_allowed(or_folder)])
    try:
        data = path.read_bytes()
    except IsADirectoryError:
        if (path / RUN_FOLDER_MARK).is_file():
            allowed = [f"it holds a run; to go on with it: elinvar resume {quote(source)}"]
        else:
            allowed = [_allowed(or_folder)]
        raise InvalidInput(f"{at}{source} is a folder, not a run file", allowed) from None
    except (FileNotFoundError, NotADirectoryError):
        raise InvalidInput(f"{at}{_missing(source)}", _help_with_missing(source, path, or_folder)) from None
    except OSError as error:
        raise InvalidInput(f"{at}run file {path} cannot be read: {error.strerror}") from None
    except ValueError as error:  # a NUL in the name
        raise InvalidInput(f"{at}{source!r} is no file name: {error}") from None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        what = f"{path}:{line}: not UTF-8: byte 0x{data[error.start]:02x} at offset {error.start}"
        raise InvalidInput(what, ["save the file as UTF-8"]) from None


def _missing(source: str) -> str:
    return f"run file {source} does not exist" if _is_file_name(source) else f"no preset or run file {source}"


def _help_with_missing(source: str, path: Path, or_folder: bool) -> list[str]:
    lines = missing_file_hint(path)
    close = nearest(Path(source).stem, preset_names())
    if close is not None:
        lines.append(f"a preset with a similar name exists: {close}")
    return [*lines, _allowed(or_folder)]


def _allowed(or_folder: bool) -> str:
    presets = f"a preset ({', '.join(preset_names())})"
    return (
        f"allowed: a TOML file, {presets}, or a run folder"
        if or_folder
        else f"allowed: a TOML file, or {presets}"
    )


def _parse(text: str, name: str, folder: Path) -> Layer:
    try:
        tree = tomllib.loads(text)
    except ValueError as error:  # TOMLDecodeError, and integers of thousands of digits
        raise _not_toml(text, name, str(error)) from None
    except RecursionError:
        raise InvalidInput(f"{name}: nested too deep to be a run file") from None
    places = {
        ".".join(map(str, path)): f"{name}:{line}:{column}"
        for path, (line, column) in positions(text).items()
    }
    absolute_paths(tree, folder)
    return Layer(name, tree, places)


def absolute_paths(tree: dict[str, Any], folder: Path) -> None:
    """Make the paths that a layer sets absolute: they are relative to the file that wrote them."""
    experiment = tree.get("experiment")
    data = experiment.get("data") if isinstance(experiment, dict) else None
    if isinstance(data, dict) and isinstance(data.get("source"), str) and data["source"]:
        data["source"] = absolute_source(data["source"], folder)
    machine = tree.get(MACHINE)
    if isinstance(machine, str) and _is_file_name(machine):
        tree[MACHINE] = absolute_source(machine, folder)


def absolute_source(source: str, folder: Path) -> str:
    """A data source or machine file as an absolute path; builtins as they are."""
    if is_builtin(source):
        return source
    # Not resolve(): it follows symbolic links, and the name of the file says its format.
    return os.path.abspath(folder / _expanded(source))  # noqa: PTH100


def _expanded(source: str) -> Path:
    """`source` with a leading ~ as the home it means; a ~name of nobody stays a file name."""
    return Path(os.path.expanduser(source))  # noqa: PTH111  (Path.expanduser raises for nobody)


def _not_toml(text: str, name: str, said: str) -> InvalidInput:
    match = re.search(r"(.*) \(at line (\d+), column (\d+)\)", said)
    if match is None:
        return InvalidInput(f"{name} is not TOML: {said}")
    what, line, column = match[1], int(match[2]), int(match[3])
    lines = text.replace("\r\n", "\n").split("\n")
    twice = _written_twice(text, line) if what.startswith(("Cannot", "Duplicate")) else None
    if twice is not None:
        first, second = twice
        return InvalidInput(
            f"{name}:{second.line}:{second.column}: {'.'.join(map(str, second.path))} is written twice",
            [lines[second.line - 1].strip(), f"first at {name}:{first.line}:{first.column}"],
        )
    shown = lines[line - 1].strip() if line <= len(lines) else ""
    details: Sequence[str] = [shown] if shown else []
    return InvalidInput(f"{name}:{line}:{column}: not TOML: {what[0].lower()}{what[1:]}", details)


def _written_twice(text: str, until: int) -> tuple[Mark, Mark] | None:
    """The first two definitions of one key up to line `until`."""
    defined: dict[tuple[str | int, ...], Mark] = {}
    for mark in marks(text):
        if mark.line > until or not mark.defines:
            continue
        if mark.path in defined:
            return defined[mark.path], mark
        defined[mark.path] = mark
    return None
