"""A new field cannot be forgotten: state has an entry in the inventory, and the digest sees each entry."""

from dataclasses import fields, replace

import pytest
import torch
from msgspec import Struct, inspect

from elinvar.checkpoint.inventory import INVENTORY
from elinvar.data.cursor import Cursor
from elinvar.parallel.replicate import Replicas
from elinvar.parallel.shard import Layout
from elinvar.parallel.world import World
from elinvar.spec.execution import Execution
from elinvar.spec.experiment import Experiment
from elinvar.train.state import RunState, digest_state, fresh_state

SHAPES = {"a.weight": (4, 3), "b.weight": (5,)}


def state():
    world = World(rank=0, size=1, device=torch.device("cpu"))
    replicas = Replicas(world, Layout(SHAPES, 1), ((0,),), 1, 0)
    parameters = {name: torch.ones(shape) for name, shape in SHAPES.items()}
    return fresh_state(parameters, replicas.held, Cursor(dataset="ab" * 32, position=0)), replicas


def test_every_field_of_the_state_is_in_the_inventory():
    assert {field.name for field in fields(RunState)} == set(INVENTORY)


def changed(before, name):
    """`before` with the smallest change of one field."""
    value = getattr(before, name)
    if name == "parameters":
        moved = {key: tensor.clone() for key, tensor in value.items()}
        moved["b.weight"].view(-1).view(torch.int32)[-1] += 1  # one bit of the last element
        return replace(before, parameters=moved)
    if name == "cursor":
        return replace(before, cursor=Cursor(dataset=value.dataset, position=value.position + 1))
    if isinstance(value, list):
        moved = [tensor.clone() for tensor in value]
        moved[0].view(torch.int32)[0] += 1
        return replace(before, **{name: moved})
    return replace(before, **{name: value + 1})


@pytest.mark.parametrize("name", [name for name, kind in INVENTORY.items() if kind != "derived"])
def test_the_digest_sees_the_smallest_change_of_every_field(name):
    before, replicas = state()
    assert digest_state(changed(before, name), replicas) != digest_state(before, replicas)


def test_the_digest_sees_another_data_set():
    before, replicas = state()
    after = replace(before, cursor=Cursor(dataset="cd" * 32, position=0))
    assert digest_state(after, replicas) != digest_state(before, replicas)


def structs(struct):
    """A struct and every struct that its fields may hold."""
    yield struct
    for field in inspect.type_info(struct).fields:
        waiting = [field.type]
        while waiting:
            kind = waiting.pop()
            waiting += getattr(kind, "types", ())
            if isinstance(kind, inspect.StructType):
                yield from structs(kind.cls)


@pytest.mark.parametrize("top", [Experiment, Execution])
def test_both_halves_are_frozen_and_refuse_unknown_keys(top):
    for struct in structs(top):
        assert issubclass(struct, Struct)
        config = struct.__struct_config__
        assert config.frozen, struct
        assert config.forbid_unknown_fields, struct
