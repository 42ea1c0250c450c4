"""Which rank computes which microbatch, and which rank holds which piece of the optimizer state.

Nouns: `owners` (leaves by rank), `aligned_nodes` (the parts of the fold's tree that a rank can
finish alone) and `shard_bounds` (cuts of a flat tensor on block borders). Ownership belongs to the
execution: the fold's tree depends on the number of microbatches only, so any ownership gives the
same sums. Nothing here looks at a device, a launcher or a clock.

The fold's tree: leaf i is node (0, i); node (level, index) covers the leaves
[index * 2**level, (index + 1) * 2**level) that exist. Where its right child covers no leaf, it
equals its left child, so nodes of different levels may stand for one and the same sum.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Literal, NamedTuple, assert_never

Kind = Literal["contiguous", "round_robin"]


class Node(NamedTuple):
    """A node of the fold's tree; the tuple (level, index), counted from the left as `number`."""

    level: int
    number: int

    def leaves(self, num_microbatches: int) -> range:
        """The leaves below this node that exist."""
        return range(
            min(self.number << self.level, num_microbatches),
            min((self.number + 1) << self.level, num_microbatches),
        )


def root(num_microbatches: int) -> Node:
    """The root: the lowest node over all leaves."""
    return Node((num_microbatches - 1).bit_length(), 0)


def owners(num_microbatches: int, num_ranks: int, kind: Kind) -> tuple[tuple[int, ...], ...]:
    """The leaves of each rank, ascending; ranks beyond the number of leaves get none.

    `contiguous` gives runs whose lengths differ by at most one, the longer ones first (8 leaves on
    3 ranks: 3 + 3 + 2); `round_robin` gives leaf i to rank i % num_ranks.
    """
    if kind == "contiguous":
        least, longer = divmod(num_microbatches, num_ranks)
        starts = [rank * least + min(rank, longer) for rank in range(num_ranks + 1)]
        return tuple(tuple(range(starts[rank], starts[rank + 1])) for rank in range(num_ranks))
    if kind == "round_robin":
        return tuple(tuple(range(rank, num_microbatches, num_ranks)) for rank in range(num_ranks))
    assert_never(kind)


def aligned_nodes(leaves: Iterable[int], num_microbatches: int) -> tuple[Node, ...]:
    """The maximal nodes whose existing leaves are all in `leaves`, in leaf order.

    These are the sums that the owner of `leaves` can finish alone. Where several nodes stand for
    one sum, the highest is given: of 5 leaves, leaf 4 alone is node (2, 1).
    """
    held = frozenset(leaves)
    assert all(0 <= leaf < num_microbatches for leaf in held)
    found: list[Node] = []
    waiting = [root(num_microbatches)]
    while waiting:
        node = waiting.pop()
        below = node.leaves(num_microbatches)
        num_held = sum(leaf in held for leaf in below)
        if num_held == 0:
            continue
        if num_held == len(below):
            found.append(node)
        else:
            left = Node(node.level - 1, 2 * node.number)
            waiting += [Node(left.level, left.number + 1), left]
    return tuple(found)


def most_sums_held(leaves: Iterable[int], num_microbatches: int) -> int:
    """How many sums the owner of `leaves` holds at once at most: its share of memory in gradients.

    Leaves come in ascending order and merge as soon as both children are there, so an aligned run of
    n leaves needs floor(log2(n)) + 1; leaves that are no neighbours stay apart.
    """
    held: set[Node] = set()
    most = 0
    for leaf in sorted(leaves):
        most = max(most, len(held) + 1)
        node = Node(0, leaf)
        while node != root(num_microbatches):
            sibling = Node(node.level, node.number ^ 1)
            if sibling in held:
                held.remove(sibling)
            elif node.number % 2 == 1 or len(sibling.leaves(num_microbatches)) > 0:
                break
            node = Node(node.level + 1, node.number // 2)
        held.add(node)
    return most


def shard_bounds(block_sizes: Sequence[int], num_ranks: int) -> tuple[int, ...]:
    """Element bounds of each rank's shard of a flat tensor made of blocks: num_ranks + 1 numbers.

    Rank r holds elements [bounds[r], bounds[r + 1]). Each bound is the block border nearest to the
    even cut (the lower one of two equally near), so that no block is split; a shard may be empty.
    """
    borders = (0, *accumulate(block_sizes))
    total = borders[-1]
    bounds = [0]
    for rank in range(1, num_ranks):
        # Compared in units of 1 / num_ranks elements, so that no rounding can move a cut.
        cut = total * rank
        above = bisect_left(borders, cut, key=lambda border: border * num_ranks)
        below = max(above - 1, 0)
        nearest = below if cut - borders[below] * num_ranks <= borders[above] * num_ranks - cut else above
        bounds.append(borders[nearest])
    return (*bounds, total)
