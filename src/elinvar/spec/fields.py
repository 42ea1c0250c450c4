"""The fields that a run file may hold, read off the frozen values themselves.

Nouns: `Leaf` (one value), `Table` (a struct, or a tagged union of structs told apart by `kind`) and
`Member` (one kind of a table). Everything else asks here what exists, so a new field of the spec is
known to the reader, the error pages, the overrides and the JSON Schema without another line.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import NamedTuple

from msgspec import NODEFAULT, Struct, inspect

from elinvar.spec.execution import Execution
from elinvar.spec.experiment import Experiment

KIND = "kind"


class Leaf(NamedTuple):
    """A single value: the types it may have; `default` is msgspec.NODEFAULT where the key is required."""

    types: tuple[inspect.Type, ...]
    default: object

    @property
    def required(self) -> bool:
        """Whether a run file must hold it."""
        return self.default is NODEFAULT

    @property
    def takes_text(self) -> bool:
        """Whether a string can be a value of this field."""
        return any(
            isinstance(kind, inspect.StrType)
            or (
                isinstance(kind, inspect.LiteralType) and any(isinstance(value, str) for value in kind.values)
            )
            for kind in self.types
        )


class Member(NamedTuple):
    """One kind of a table: its struct and its fields by name."""

    cls: type[Struct]
    fields: Mapping[str, "Leaf | Table"]


class Table(NamedTuple):
    """A struct (one member under the name None) or a tagged union (members by `kind`).

    `default_kind` is the kind when the key is absent; None where there is no choice, or it must be made.
    """

    members: Mapping[str | None, Member]
    required: bool
    default_kind: str | None

    @property
    def tagged(self) -> bool:
        """Whether the table holds a `kind`."""
        return None not in self.members

    def member(self, kind: object) -> Member | None:
        """The member for what a file says under `kind` (None: nothing); None where there is no such kind."""
        if not self.tagged:
            return self.members[None]
        chosen = self.default_kind if kind is None else kind
        return self.members.get(chosen) if isinstance(chosen, str) else None


Field = Leaf | Table


@cache
def run_file() -> Table:
    """The whole run file: the tables `experiment` and `execution`."""
    execution = _table(inspect.type_info(Execution), required=False, default=Execution())
    experiment = _table(inspect.type_info(Experiment), required=True, default=NODEFAULT)
    return Table({None: Member(Struct, {"experiment": experiment, "execution": execution})}, True, None)


@cache
def all_paths() -> tuple[str, ...]:
    """Every path that any run file may hold, tables too, in the order of the structs."""
    return tuple(dict.fromkeys(path for path, _ in walk(run_file(), ())))


def walk(table: Table, path: tuple[str, ...]) -> Iterator[tuple[str, Field]]:
    """(dotted path, field) of everything below `table`, of all its kinds."""
    if table.tagged:
        yield ".".join((*path, KIND)), kind_leaf(table)
    for member in table.members.values():
        for name, field in member.fields.items():
            yield ".".join((*path, name)), field
            if isinstance(field, Table):
                yield from walk(field, (*path, name))


def fields_at(path: tuple[str, ...]) -> tuple[Field, ...]:
    """The fields that `path` may mean, over all kinds of the tables on its way; empty: no such key."""
    return tuple(field for at, field in walk(run_file(), ()) if at == ".".join(path))


def kind_leaf(table: Table) -> Leaf:
    """The `kind` key of a tagged table as a leaf."""
    kinds = tuple(kind for kind in table.members if kind is not None)
    return Leaf(
        (inspect.LiteralType(kinds),), NODEFAULT if table.default_kind is None else table.default_kind
    )


def _field(field: inspect.Field) -> Field:
    if field.default_factory is not NODEFAULT:
        raise TypeError(f"{field.name}: a default of the spec is a value, not a factory")
    types = field.type.types if isinstance(field.type, inspect.UnionType) else (field.type,)
    if all(isinstance(kind, inspect.StructType) for kind in types):
        return _table(field.type, field.required, field.default)
    return Leaf(types, field.default)


def _table(info: inspect.Type, required: bool, default: object) -> Table:
    structs = info.types if isinstance(info, inspect.UnionType) else (info,)
    members: dict[str | None, Member] = {}
    for struct in structs:
        assert isinstance(struct, inspect.StructType)
        tag = None if struct.tag is None else str(struct.tag)
        members[tag] = Member(struct.cls, {field.encode_name: _field(field) for field in struct.fields})
    default_kind = None
    for kind, member in members.items():
        if isinstance(default, Struct) and type(default) is member.cls:
            default_kind = kind
    return Table(members, required, default_kind)
