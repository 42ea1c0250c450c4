"""The cut: this rank's share of the state as bytes, taken between two updates.

Noun: `Snapshot`. Once it is taken, the state may go on changing. Reading never writes: nothing
here advances a counter, draws a number or touches a gradient.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from elinvar.checkpoint.inventory import shard_tensors
from elinvar.identity import Digest
from elinvar.numerics.digest import Lanes
from elinvar.parallel.replicate import Replicas
from elinvar.parallel.shard import Piece
from elinvar.train.state import RunState, digest_state, state_lanes


@dataclass(frozen=True)
class Share:
    """Some elements of one logical tensor."""

    tensor: str
    piece: Piece
    data: NDArray[np.uint8]


@dataclass(frozen=True)
class Snapshot:
    """What one rank writes, and what all ranks know: digest, lanes and scalars of the whole state."""

    shares: tuple[Share, ...]
    step: int
    update_digest: Digest
    lanes: Mapping[str, Lanes]
    shapes: Mapping[str, tuple[int, ...]]
    scalars: Mapping[str, int | str]


def capture(state: RunState, replicas: Replicas) -> Snapshot:
    """Copy this rank's shard of the state; every rank must call it at the same step."""
    found = state_lanes(state, replicas)
    shares = tuple(
        Share(name, piece, tensor.detach().cpu().contiguous().view(-1).numpy().view(np.uint8).copy())
        for name, piece, tensor in shard_tensors(state, replicas.shard)
    )
    return Snapshot(
        shares=shares,
        step=state.step,
        update_digest=digest_state(state, replicas, found),
        lanes=found,
        shapes={name: replicas.layout.shapes[name.partition("/")[2]] for name in found},
        scalars=state.scalars,
    )
