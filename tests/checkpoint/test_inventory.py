"""What a generation holds is what the state holds: no field more or less, in one order."""

from dataclasses import fields, replace

import pytest
import torch

from elinvar.checkpoint.inventory import INVENTORY, shard_tensors, tensor_names
from elinvar.data.cursor import Cursor
from elinvar.train.state import RunState
from experiments import rank_of, with_sharding


def test_every_field_of_the_state_has_an_entry():
    assert set(INVENTORY) == {field.name for field in fields(RunState)}


def test_every_scalar_field_is_among_the_scalars(rank):
    """Changing any scalar field changes `scalars`, so it reaches manifest and digest."""
    changes = {"step": 1, "optimizer_steps": 1, "tokens": 1, "cursor": Cursor(dataset="ab" * 32, position=1)}
    assert set(changes) == {name for name, kind in INVENTORY.items() if kind == "scalar"}
    for name, value in changes.items():
        assert replace(rank.state, **{name: value}).scalars != rank.state.scalars
        assert replace(rank.state, **{name: value}).scalars.keys() == rank.state.scalars.keys()
    positions = [
        replace(rank.state, cursor=Cursor(dataset=d * 32, position=p)).scalars
        for d, p in (("ab", 0), ("ab", 1), ("cd", 0))
    ]
    assert len({tuple(scalars.items()) for scalars in positions}) == 3


def test_every_tensor_field_is_written_whole(rank):
    names = tensor_names(list(rank.state.parameters))
    written = list(shard_tensors(rank.state, rank.replicas.shard))
    assert [name for name, _, _ in written] == names
    for name, piece, tensor in written:
        assert tensor.numel() == piece.num_elements == rank.state.parameters[piece.name].numel()
        assert name.partition("/")[2] == piece.name
    kinds = {name.partition("/")[0] for name in names}
    assert kinds == {"parameter", "exp_avg", "exp_avg_sq"}


@pytest.mark.parametrize("sharding", [0, 1])
@pytest.mark.parametrize("size", [2, 3, 5])
def test_shards_tile_every_tensor(experiment, size, sharding):
    """Of every rank's shard together; what a rank keeps beyond its shard is not written twice."""
    whole = rank_of(experiment)
    whole.take()
    joined = {}
    for place in range(size):
        state, replicas = with_sharding(whole, size, place, sharding)
        for name, piece, tensor in shard_tensors(state, replicas.shard):
            joined.setdefault(name, []).append(tensor)
            assert tensor.numel() == piece.num_elements
    for name, _, tensor in shard_tensors(whole.state, whole.replicas.shard):
        assert torch.equal(torch.cat(joined[name]), tensor.reshape(-1))
