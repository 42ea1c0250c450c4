"""The JSON Schema of a run file, for the completion and checks of editors.

Noun: the schema, built from the same fields that the reader uses. It is lenient where a run file may
inherit (`base`): no key is required, because a parent may hold it. Relations between fields are
checked by the reader only.
"""

import inspect as python
from typing import Any

import msgspec
from msgspec import NODEFAULT, inspect

from elinvar.spec.fields import KIND, Leaf, Member, Table, run_file

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def run_file_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of a run file, as plain dicts."""
    tables = {
        name: _table(field)
        for name, field in run_file().members[None].fields.items()
        if isinstance(field, Table)
    }
    return {
        "$schema": DIALECT,
        "title": "Elinvar run file",
        "type": "object",
        "properties": {
            "base": {
                "type": "string",
                "description": "A run file to inherit from, relative to this file, or a preset.",
            },
            "machine": {
                "anyOf": [{"type": "string"}, {"type": "object"}],
                "description": "The machine to plan for: a name, a file, or a table. In no digest.",
            },
            **tables,
        },
        "anyOf": [{"required": ["base"]}, {"required": ["experiment"]}],
        "additionalProperties": False,
    }


def _table(table: Table) -> dict[str, Any]:
    if not table.tagged:
        return _member(table.members[None], None)
    members = [_member(member, kind) for kind, member in table.members.items()]
    return members[0] if len(members) == 1 else {"anyOf": members}


def _member(member: Member, kind: str | None) -> dict[str, Any]:
    properties: dict[str, Any] = {} if kind is None else {KIND: {"const": kind}}
    for name, field in member.fields.items():
        properties[name] = _table(field) if isinstance(field, Table) else _leaf(field)
    return {
        "type": "object",
        "description": python.cleandoc(member.cls.__doc__ or ""),
        "properties": properties,
        "additionalProperties": False,
    }


def _leaf(leaf: Leaf) -> dict[str, Any]:
    types = [_type(kind) for kind in leaf.types if not isinstance(kind, inspect.NoneType)]
    schema = types[0] if len(types) == 1 else {"anyOf": types}
    if leaf.default is not NODEFAULT and leaf.default is not None:
        schema = {**schema, "default": msgspec.to_builtins(leaf.default)}
    return schema


def _type(kind: inspect.Type) -> dict[str, Any]:
    if isinstance(kind, inspect.LiteralType):
        return {"enum": list(kind.values)}
    if isinstance(kind, inspect.BoolType):
        return {"type": "boolean"}
    if isinstance(kind, inspect.StrType):
        return {"type": "string"}
    assert isinstance(kind, inspect.IntType | inspect.FloatType)
    limits = {
        "minimum": kind.ge,
        "exclusiveMinimum": kind.gt,
        "maximum": kind.le,
        "exclusiveMaximum": kind.lt,
    }
    name = "integer" if isinstance(kind, inspect.IntType) else "number"
    return {"type": name, **{word: limit for word, limit in limits.items() if limit is not None}}
