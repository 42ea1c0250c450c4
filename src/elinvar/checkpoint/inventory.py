"""What a generation holds: one entry for each field of `RunState`.

A test compares `INVENTORY` with the fields of `RunState`: a new field without an entry fails it.
"""

from collections.abc import Iterator
from typing import Literal

from torch import Tensor

from elinvar.parallel.shard import Piece
from elinvar.train.state import RunState

Kind = Literal["parameter", "moment", "scalar", "derived"]

INVENTORY: dict[str, Kind] = {
    "parameters": "parameter",
    "storage": "derived",  # the memory of `parameters`
    "exp_avg": "moment",
    "exp_avg_sq": "moment",
    "held": "derived",  # follows from the execution that restores, not from the one that wrote
    "step": "scalar",
    "optimizer_steps": "scalar",
    "tokens": "scalar",
    "cursor": "scalar",
}


def tensor_names(names: list[str]) -> list[str]:
    """The names of all logical tensors of a state over these parameters, in canonical order."""
    return [f"{kind}/{name}" for kind in ("parameter", "exp_avg", "exp_avg_sq") for name in names]


def shard_tensors(state: RunState, shard: tuple[Piece, ...]) -> Iterator[tuple[str, Piece, Tensor]]:
    """(tensor name, piece, its elements) of the state for every piece of `shard`, in canonical order.

    The pieces of `shard` must lie within pieces that this rank holds.
    """
    for piece in shard:
        yield f"parameter/{piece.name}", piece, piece.of(state.parameters[piece.name])
    for kind, moments in (("exp_avg", state.exp_avg), ("exp_avg_sq", state.exp_avg_sq)):
        held = {p.name: (p, tensor) for p, tensor in zip(state.held, moments, strict=True)}
        for piece in shard:
            holder, tensor = held[piece.name]
            assert holder.start <= piece.start
            assert piece.stop <= holder.stop
            yield (
                f"{kind}/{piece.name}",
                piece,
                tensor[piece.start - holder.start : piece.stop - holder.start],
            )
