"""Everything that the next update depends on, and nothing else.

Noun: `RunState`. A reflection test ties each of its fields to the checkpoint inventory. A step
takes a state and returns the next one; tensors are updated in place, since two copies of a model
are what nobody has room for.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from elinvar.data.cursor import Cursor
from elinvar.errors import RunFailed
from elinvar.identity import Digest
from elinvar.numerics.digest import Lanes, add, lanes, update_digest
from elinvar.parallel.collective import gather_rows
from elinvar.parallel.replicate import Replicas
from elinvar.parallel.shard import Piece

MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass
class RunState:
    """State after `step` updates' worth of the order was consumed.

    `parameters`: whole fp32 logical tensors by name, views of the 1-D `storage`, which the model
    computes with. `exp_avg`,
    `exp_avg_sq`: 1-D fp32, one a piece of `held`. `step` counts steps, `optimizer_steps` those that
    moved parameters (AdamW's counter), `tokens` target tokens consumed. `cursor` is the next
    position: consumed, not prefetched.
    """

    parameters: dict[str, Tensor]
    storage: Tensor
    exp_avg: list[Tensor]
    exp_avg_sq: list[Tensor]
    held: tuple[Piece, ...]
    step: int
    optimizer_steps: int
    tokens: int
    cursor: Cursor

    @property
    def scalars(self) -> dict[str, int | str]:
        """The exact numbers of the state, as they enter digest and manifest."""
        return {
            "step": self.step,
            "optimizer_steps": self.optimizer_steps,
            "tokens": self.tokens,
            "cursor_position": self.cursor.position,
            "cursor_dataset": self.cursor.dataset,
        }


def fresh_state(parameters: Mapping[str, Tensor], held: tuple[Piece, ...], cursor: Cursor) -> RunState:
    """The state before step 1: initial parameters, zero moments.

    `parameters` are the model's own; they are moved into one storage, in their order, so that a
    shard is one slice of it.
    """
    device = next(iter(parameters.values())).device
    sizes = [parameter.numel() for parameter in parameters.values()]
    storage = torch.empty(sum(sizes), dtype=torch.float32, device=device)
    for parameter, place in zip(parameters.values(), storage.split(sizes), strict=True):
        place.copy_(parameter.detach().view(-1))
        parameter.data = place.view(parameter.shape)

    def zeros() -> list[Tensor]:
        return [torch.zeros(piece.num_elements, dtype=torch.float32, device=device) for piece in held]

    return RunState(
        parameters={name: parameter.detach() for name, parameter in parameters.items()},
        storage=storage,
        exp_avg=zeros(),
        exp_avg_sq=zeros(),
        held=held,
        step=0,
        optimizer_steps=0,
        tokens=0,
        cursor=cursor,
    )


def state_lanes(state: RunState, replicas: Replicas) -> dict[str, Lanes]:
    """The lanes of every logical tensor of the state, the same on every rank.

    What every rank holds whole is compared: raises RunFailed naming the first tensor and rank
    where a replica has diverged (a hardware fault, or user code that touched one rank's copy).
    """
    names = list(state.parameters)
    here = [lanes(state.parameters[name]) for name in names]
    partial: dict[tuple[str, str], Lanes] = {}
    for kind, moments in zip(MOMENTS, (state.exp_avg, state.exp_avg_sq), strict=True):
        for piece, tensor in zip(state.held, moments, strict=True):
            partial[kind, piece.name] = lanes(tensor, piece.start)
    keys = [(kind, name) for kind in MOMENTS for name in names]
    rows = _gather_lanes(replicas, here + [partial.get(key, (0, 0)) for key in keys])
    found = {f"parameter/{name}": lane for name, lane in zip(names, rows[0], strict=False)}
    whole = len(names) if replicas.sharding else len(rows[0])
    labels = [f"parameter/{name}" for name in names] + [f"{kind}/{name}" for kind, name in keys]
    for rank, row in enumerate(rows):
        for label, mine, first in zip(labels[:whole], row, rows[0], strict=False):
            if mine != first:
                raise RunFailed(f"replicas diverged: {label} on rank {rank} differs from rank 0")
    for place, label in enumerate(labels[len(names) :], start=len(names)):
        found[label] = add([row[place] for row in rows]) if replicas.sharding else rows[0][place]
    return found


def digest_state(state: RunState, replicas: Replicas, found: Mapping[str, Lanes] | None = None) -> Digest:
    """The update digest of the state, the same on every rank and under every sharding."""
    by_name = found if found is not None else state_lanes(state, replicas)
    shapes = replicas.layout.shapes
    tensors = {name: ("float32", shapes[name.partition("/")[2]], lane) for name, lane in by_name.items()}
    return update_digest(tensors, state.scalars)


def _gather_lanes(replicas: Replicas, here: Sequence[Lanes]) -> list[list[Lanes]]:
    """The lanes of all ranks: one list a rank."""
    signed = [value - (1 << 64) if value >> 63 else value for pair in here for value in pair]
    row = torch.tensor(signed, dtype=torch.int64, device=replicas.world.device)
    mask = (1 << 64) - 1
    return [
        [(values[i] & mask, values[i + 1] & mask) for i in range(0, len(values), 2)]
        for values in gather_rows(replicas.world, row).tolist()
    ]
