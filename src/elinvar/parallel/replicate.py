"""Data parallelism: the leaves' gradients of all ranks become one sum, the pieces become an update.

Noun: `Replicas`, the ranks that hold a copy of the model. ZeRO-0: every rank keeps all optimizer
state and updates everything. ZeRO-1 (Rajbhandari et al. 2020, arXiv 1910.02054): a rank keeps and
updates the pieces of its shard, and the new parameters are gathered. Both finish the same fold on
the same shards first, so both give the same bits. One rank is the case without movement.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from elinvar.numerics.norm import block_sums, norm_of
from elinvar.numerics.reduce import Fold
from elinvar.parallel.collective import gather_pieces, share, swap
from elinvar.parallel.shard import Layout, Piece
from elinvar.parallel.world import World
from elinvar.plan.ownership import aligned_nodes


class Buffers:
    """Memory that is used again at every step: fresh pages cost more than the bytes moved through them."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._held: dict[str, Tensor] = {}

    def take(self, name: str, size: int) -> Tensor:
        """The 1-D fp32 buffer of that name and size, with whatever it held last."""
        if name not in self._held or self._held[name].numel() != size:
            self._held[name] = torch.empty(size, dtype=torch.float32, device=self._device)
        return self._held[name]


@dataclass(frozen=True)
class Replicas:
    """Data-parallel ranks over one layout; `owned[r]` are the leaves of rank r, `sharding` the ZeRO stage."""

    world: World
    layout: Layout
    owned: tuple[tuple[int, ...], ...]
    num_leaves: int
    sharding: int
    buffers: Buffers = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "buffers", Buffers(self.world.device))

    @property
    def shard(self) -> tuple[Piece, ...]:
        """The pieces that this rank reduces and writes to generations."""
        return self.layout.shard(self.world.rank)

    @property
    def held(self) -> tuple[Piece, ...]:
        """The pieces whose optimizer state this rank keeps, and which it updates."""
        return self.shard if self.sharding else self.layout.whole()

    def reduce(self, local: Fold) -> list[Tensor]:
        """The finished fold over all leaves of all ranks: 1-D fp32, one tensor a piece of `shard`.

        `local` holds the sums of this rank's own leaves. A parameter without a gradient in any
        leaf gets zeros. Each round moves one node of every rank to the shards' owners.
        """
        if self.world.size == 1:
            whole = zip(local.root(), self.layout.whole(), strict=True)
            return [
                tensor.reshape(-1) if tensor is not None else self._zeros(piece.num_elements)
                for tensor, piece in whole
            ]
        nodes = [aligned_nodes(leaves, self.num_leaves) for leaves in self.owned]
        mine = list(local.pending())
        assert [node for node, _ in mine] == [tuple(node) for node in nodes[self.world.rank]]
        fold = Fold(self.num_leaves)
        nothing = self._zeros(0)
        for turn in range(max(map(len, nodes))):
            sent: Sequence[Tensor] = [nothing] * self.world.size
            if turn < len(mine):
                sent = self._flat(mine[turn][1]).split(list(self.layout.sizes))
            parts = [
                self.buffers.take(f"part {turn} {rank}", self._shard_size if turn < len(theirs) else 0)
                for rank, theirs in enumerate(nodes)
            ]
            swap(self.world, sent, parts)
            for theirs, part in zip(nodes, parts, strict=True):
                if turn < len(theirs):
                    fold.push(theirs[turn], [part])
        (flat,) = fold.root()
        assert flat is not None
        return self.layout.split(flat, self.shard)

    def norm(self, gradients: Sequence[Tensor]) -> float:
        """The global L2 norm of the reduced gradients (pieces of `shard`), equal under any sharding."""
        here = [block_sums(g, piece.shape) for g, piece in zip(gradients, self.shard, strict=True)]
        joined = torch.cat(here) if here else self._zeros(0, torch.float64)
        counts = [
            sum(piece.num_blocks for piece in self.layout.shard(rank)) for rank in range(self.world.size)
        ]
        return norm_of(gather_pieces(self.world, joined, counts))

    def deliver(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """The reduced gradients of the pieces of `held`: gathered for ZeRO-0, as they are for ZeRO-1."""
        if self.sharding or self.world.size == 1:
            return list(gradients)
        flat = self.buffers.take("node", self.layout.num_elements)
        start, stop = self.layout.bounds[self.world.rank : self.world.rank + 2]
        if gradients:
            torch.cat([gradient.reshape(-1) for gradient in gradients], out=flat[start:stop])
        share(self.world, flat, self.layout.bounds)
        return self.layout.split(flat, self.held)

    def publish(self, flat: Tensor) -> None:
        """After an update of `held`: bring the whole parameters up to date on every rank.

        `flat` is their storage, all logical tensors in layout order.
        """
        if self.sharding and self.world.size > 1:
            share(self.world, flat, self.layout.bounds)

    @property
    def _shard_size(self) -> int:
        return self.layout.sizes[self.world.rank]

    def _flat(self, tensors: Sequence[Tensor | None]) -> Tensor:
        """One node's sums as one 1-D tensor, in a buffer that is used again at the next turn."""
        whole = zip(tensors, self.layout.whole(), strict=True)
        parts = [t.reshape(-1) if t is not None else self._zeros(p.num_elements) for t, p in whole]
        return torch.cat(parts, out=self.buffers.take("node", self.layout.num_elements))

    def _zeros(self, size: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.zeros(size, dtype=dtype, device=self.world.device)
