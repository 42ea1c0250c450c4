"""Data parallelism: the leaves' gradients of all ranks become one sum, the pieces become an update.

Noun: `Replicas`, the ranks that hold a copy of the model. ZeRO-0: every rank keeps all optimizer
state and updates everything. ZeRO-1 (Rajbhandari et al. 2020, arXiv 1910.02054): a rank keeps and
updates the pieces of its shard, and the new parameters are gathered. Both finish the same fold on
the same shards first, so both give the same bits. One rank is the case without movement.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from elinvar.numerics.norm import block_sums, norm_of
from elinvar.numerics.reduce import Fold
from elinvar.parallel.collective import exchange, gather_pieces
from elinvar.parallel.shard import Layout, Piece
from elinvar.parallel.world import World
from elinvar.plan.ownership import aligned_nodes


@dataclass(frozen=True)
class Replicas:
    """Data-parallel ranks over one layout; `owned[r]` are the leaves of rank r, `sharding` the ZeRO stage."""

    world: World
    layout: Layout
    owned: tuple[tuple[int, ...], ...]
    num_leaves: int
    sharding: int

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
                tensor.view(-1) if tensor is not None else self._zeros(piece.num_elements)
                for tensor, piece in whole
            ]
        nodes = [aligned_nodes(leaves, self.num_leaves) for leaves in self.owned]
        mine = list(local.pending())
        assert [node for node, _ in mine] == [tuple(node) for node in nodes[self.world.rank]]
        fold = Fold(self.num_leaves)
        for turn in range(max(map(len, nodes))):
            sizes = [self.layout.sizes[self.world.rank] if turn < len(n) else 0 for n in nodes]
            sends = turn < len(mine)
            sent = self._flat(mine[turn][1]) if sends else self._zeros(0)
            sent_sizes = self.layout.sizes if sends else [0] * self.world.size
            parts = exchange(self.world, sent, sent_sizes, sizes).split(sizes)
            for node, part in zip((n[turn] if turn < len(n) else None for n in nodes), parts, strict=True):
                if node is not None:
                    fold.push(node, [part])
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
        return self.layout.split(self._gather(gradients), self.held)

    def publish(self, parameters: Sequence[Tensor]) -> None:
        """After an update of `held`: bring every rank's whole parameters, in layout order, up to date."""
        if not self.sharding or self.world.size == 1:
            return
        by_name = dict(zip(self.layout.shapes, parameters, strict=True))
        flat = self._gather([piece.of(by_name[piece.name]) for piece in self.shard])
        whole = self.layout.whole()
        for piece, new in zip(whole, self.layout.split(flat, whole), strict=True):
            piece.of(by_name[piece.name]).copy_(new)

    def _gather(self, pieces: Sequence[Tensor]) -> Tensor:
        flat = torch.cat([piece.reshape(-1) for piece in pieces]) if pieces else self._zeros(0)
        return gather_pieces(self.world, flat, self.layout.sizes)

    def _flat(self, tensors: Sequence[Tensor | None]) -> Tensor:
        whole = zip(tensors, self.layout.whole(), strict=True)
        return torch.cat([t.reshape(-1) if t is not None else self._zeros(p.num_elements) for t, p in whole])

    def _zeros(self, size: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.zeros(size, dtype=dtype, device=self.world.device)
