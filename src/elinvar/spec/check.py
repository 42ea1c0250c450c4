"""Strict checks of a run file's merged tables against the fields of the spec, one value at a time.

Noun: the complete tree, in which every default is written out. Nothing is bent: 1.5 is no integer,
true is no number, "7" is no 7, nan and inf are no numbers; an integer is a float where a float is
asked for. All problems are collected, not only the first. Relations between fields: `consistency.py`.
"""

import math
import unicodedata
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import inspect

from elinvar.spec.explain import Problem, got, nearest, synonym, toml_text
from elinvar.spec.fields import KIND, Field, Leaf, Member, Table, all_paths, kind_leaf

Where = Callable[[str], str]
"""From a dotted path to the place that set it: a position in a file, or the text of an override."""

_INT64 = 2**63


def complete(table: Table, value: object, path: str, where: Where, problems: list[Problem]) -> dict[str, Any]:
    """`value` with defaults filled in and numbers in their field's type; appends what is wrong to `problems`."""
    if not isinstance(value, dict):
        details = [got(value), f"expected a table: {', '.join(_keys(table)[:6])}"]
        if isinstance(value, str) and value in table.members:
            details.append(f'choose a kind with {path}.kind="{value}"')
        problems.append(Problem(f"{path} is a table", where(path), tuple(details)))
        return {}
    member = table.member(value.get(KIND))
    if member is None:
        problems.append(_no_such_kind(table, value, path, where))
        return {}
    for name in value:
        if name not in member.fields and not (name == KIND and table.tagged):
            problems.append(_unknown_key(table, member, value, name, path, where))
    tree: dict[str, Any] = {}
    if table.tagged:
        tree[KIND] = value.get(KIND, table.default_kind)
    for name, field in member.fields.items():
        inner = f"{path}.{name}" if path else name
        if isinstance(field, Table):
            tree[name] = _inner_table(field, value, name, inner, where, problems)
        elif name in value:
            tree[name] = _leaf(field, value[name], inner, where, problems)
        elif field.required:
            problems.append(Problem(f"{inner} is missing", where(path), (f"expected {expected(field)}",)))
        else:
            tree[name] = field.default
    return tree


def _inner_table(
    field: Table, value: dict[str, Any], name: str, path: str, where: Where, problems: list[Problem]
) -> dict[str, Any]:
    if name not in value and field.required:
        keys = ", ".join(_keys(field, required=True))
        problems.append(Problem(f"table {path} is missing", where(path), (f"it needs {keys}",)))
        return {}
    return complete(field, value.get(name, {}), path, where, problems)


def _leaf(leaf: Leaf, value: object, path: str, where: Where, problems: list[Problem]) -> Any:
    for kind in leaf.types:
        fits, fitted = _fit(kind, value)
        if fits:
            return fitted
    details = [got(value), f"expected {expected(leaf)}"]
    if isinstance(value, str):
        close = nearest(value, [text for text in _texts(leaf) if text != value])
        if close is not None:
            details.append(f"the nearest is {toml_text(close)}")
    problems.append(Problem(f"{path} cannot be {toml_text(value)}", where(path), tuple(details)))
    return None


def _fit(kind: inspect.Type, value: Any) -> tuple[bool, Any]:
    """Whether `value` is of `kind`, and its form there (an integer as a float, -0.0 as 0.0)."""
    if isinstance(kind, inspect.LiteralType):
        return any(type(value) is type(one) and value == one for one in kind.values), value
    if isinstance(kind, inspect.BoolType):
        return isinstance(value, bool), value
    if isinstance(kind, inspect.StrType):
        return isinstance(value, str) and not any(map(_is_control, value)), value
    if isinstance(kind, inspect.IntType):
        whole = isinstance(value, int) and not isinstance(value, bool) and -_INT64 <= value < _INT64
        return whole and _in_range(kind, value), value
    if isinstance(kind, inspect.FloatType):
        if isinstance(value, bool) or not isinstance(value, int | float) or not -_INT64 <= value < _INT64:
            return isinstance(value, float) and math.isfinite(value) and _in_range(kind, value), value
        return _in_range(kind, value), float(value) + 0.0
    return False, value


def _is_control(char: str) -> bool:
    """Control characters, and surrogates: the bytes of a command line that are not UTF-8."""
    return unicodedata.category(char) in ("Cc", "Cs")


def _in_range(kind: inspect.IntType | inspect.FloatType, value: float) -> bool:
    return (
        (kind.ge is None or value >= kind.ge)
        and (kind.gt is None or value > kind.gt)
        and (kind.le is None or value <= kind.le)
        and (kind.lt is None or value < kind.lt)
    )


def expected(leaf: Leaf) -> str:
    """What may stand in `leaf`, in words."""
    return " or ".join(_words(kind) for kind in leaf.types if not isinstance(kind, inspect.NoneType))


def _words(kind: inspect.Type) -> str:
    if isinstance(kind, inspect.LiteralType):
        texts = [toml_text(value) for value in kind.values]
        return texts[0] if len(texts) == 1 else f"one of {', '.join(texts)}"
    if isinstance(kind, inspect.BoolType):
        return "true or false"
    if isinstance(kind, inspect.StrType):
        return "a string without control characters"
    assert isinstance(kind, inspect.IntType | inspect.FloatType)
    noun = "an integer" if isinstance(kind, inspect.IntType) else "a finite number"
    limits = [("≥", kind.ge), (">", kind.gt), ("≤", kind.le), ("<", kind.lt)]
    bounds = [f"{sign} {limit}" for sign, limit in limits if limit is not None]
    return " ".join([noun, " and ".join(bounds)]) if bounds else noun


def _texts(leaf: Leaf) -> list[str]:
    literals = [kind for kind in leaf.types if isinstance(kind, inspect.LiteralType)]
    return [value for kind in literals for value in kind.values if isinstance(value, str)]


def _keys(table: Table, required: bool = False) -> list[str]:
    names = [KIND] if table.tagged else []
    for member in table.members.values():
        names += [name for name, field in member.fields.items() if field.required or not required]
    return list(dict.fromkeys(names))


def _no_such_kind(table: Table, value: dict[str, Any], path: str, where: Where) -> Problem:
    leaf = kind_leaf(table)
    if KIND not in value:
        return Problem(f"{path}.kind is missing", where(path), (f"expected {expected(leaf)}",))
    chosen = value[KIND]
    details = [got(chosen), f"expected {expected(leaf)}"]
    close = nearest(chosen, _texts(leaf)) if isinstance(chosen, str) else None
    if close is not None:
        details.append(f"the nearest is {toml_text(close)}")
    return Problem(f"{path}.kind cannot be {toml_text(chosen)}", where(f"{path}.kind"), tuple(details))


def _unknown_key(
    table: Table, member: Member, value: dict[str, Any], name: str, path: str, where: Where
) -> Problem:
    inner = f"{path}.{name}" if path else name
    kind = value.get(KIND, table.default_kind)
    details = [] if isinstance(value[name], dict) else [got(value[name])]
    others = [other for other, each in table.members.items() if name in each.fields]
    close = nearest(name, [*member.fields, *([KIND] if table.tagged else [])])
    elsewhere = [known for known in all_paths() if known.rsplit(".", 1)[-1] == name]
    if others:
        details.append(f"`{name}` exists for kind = {', '.join(map(str, others))}; here kind = {kind}")
    elif (known_as := synonym(name)) is not None:
        details.append(known_as)
    elif close is not None:
        where_close = f"{path}.{close}" if path else close
        details.append(f"the nearest is {where_close}{_about(member.fields.get(close))}")
    elif elsewhere:
        details.append(f"a key of this name exists: {', '.join(elsewhere)}")
    else:
        details.append(f"known here: {', '.join([KIND] * table.tagged + list(member.fields))}")
    return Problem(f"no such key: {inner}", where(inner), tuple(details))


def _about(field: Field | None) -> str:
    if not isinstance(field, Leaf):
        return ""
    default = "" if field.required or field.default is None else f", default {toml_text(field.default)}"
    return f" ({expected(field)}{default})"


def to_value(tree: dict[str, Any], cls: type[msgspec.Struct]) -> Any:
    """The frozen value of a complete tree that had no problem."""
    return msgspec.convert(tree, cls)
