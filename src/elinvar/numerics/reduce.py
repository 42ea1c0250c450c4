"""The fold: one fixed balanced binary tree over the leaves of a step, whoever computed them.

Noun: `Fold`. Node (0, i) is leaf i of M; node (l, k) is node (l-1, 2k) + node (l-1, 2k+1); where
no leaf lies below the right child, the left child is the node. Leaves may arrive in any order and
from any rank: the additions made, and so the bits, are the same. No floating-point sum of a step
is made anywhere else; in particular none is left to a collective.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

Node = tuple[int, int]
"""(level, index): covers leaves [index · 2^level, (index + 1) · 2^level) of those that exist."""


class Fold:
    """Adds lists of tensors along the tree; a sum is made as soon as both of its children are there.

    A `None` in a list is a parameter without a gradient: its sibling passes through unchanged.
    Tensors that were pushed belong to the fold, which adds in place.
    """

    def __init__(self, num_leaves: int) -> None:
        if num_leaves < 1:
            raise ValueError(f"a fold needs at least one leaf, got {num_leaves}")
        self.num_leaves = num_leaves
        self._pending: dict[Node, list[Tensor | None]] = {}

    def push(self, node: Node, tensors: Sequence[Tensor | None]) -> None:
        """Hand in the sum of `node`; each node of the tree may be covered once."""
        level, index = node
        held = list(tensors)
        while (1 << level) < self.num_leaves:
            sibling = (level, index ^ 1)
            if index % 2 == 0 and (index + 1) << level >= self.num_leaves:
                pass  # no leaf lies below the right child: the left child is the parent
            elif sibling in self._pending:
                other = self._pending.pop(sibling)
                held = _add(held, other) if index % 2 == 0 else _add(other, held)
            else:
                break
            level, index = level + 1, index // 2
        assert (level, index) not in self._pending, f"node {(level, index)} was pushed twice"
        self._pending[(level, index)] = held

    def take_left(self, leaf: int) -> list[Tensor | None] | None:
        """Hand out the waiting left sibling of an odd leaf, if it is here.

        Backward then adds the leaf onto it, which is the tree's own addition made without a second
        gradient in memory; the sum is pushed back as node (1, leaf // 2).
        """
        return self._pending.pop((0, leaf - 1), None) if leaf % 2 else None

    def pending(self) -> Iterator[tuple[Node, list[Tensor | None]]]:
        """The sums that wait for a sibling, in leaf order; one, the root, when all leaves are in."""
        return iter(sorted(self._pending.items(), key=lambda item: item[0][1] << item[0][0]))

    @property
    def depth(self) -> int:
        """How many sums are held at this moment: the memory of the fold in gradient copies."""
        return len(self._pending)

    def root(self) -> list[Tensor | None]:
        """The finished sum over all leaves, with +0.0 added once so that -0.0 never shows."""
        if len(self._pending) != 1 or (1 << next(iter(self._pending))[0]) < self.num_leaves:
            raise ValueError(
                f"the fold over {self.num_leaves} leaves is not finished: {sorted(self._pending)}"
            )
        (tensors,) = self._pending.values()
        self._pending.clear()
        present = [tensor for tensor in tensors if tensor is not None]
        if present:
            torch._foreach_add_(present, 0.0)
        return tensors


def _add(left: list[Tensor | None], right: list[Tensor | None]) -> list[Tensor | None]:
    assert len(left) == len(right)
    both = [(a, b) for a, b in zip(left, right, strict=True) if a is not None and b is not None]
    if both:
        torch._foreach_add_([a for a, _ in both], [b for _, b in both])
    return [a if a is not None else b for a, b in zip(left, right, strict=True)]


def fold_scalars(values: Sequence[float]) -> float:
    """The same tree over float64 numbers: per-leaf losses become the loss of the step."""
    nodes = list(values)
    while len(nodes) > 1:
        nodes = [nodes[k] + nodes[k + 1] if k + 1 < len(nodes) else nodes[k] for k in range(0, len(nodes), 2)]
    return nodes[0] + 0.0
