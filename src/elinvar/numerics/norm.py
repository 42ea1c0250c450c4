"""The global gradient norm, with the same bits under every partition.

Nouns: logical block and block sum. A logical block is a piece of one dim-0 row of at most 1,024
elements, so no dim-0 shard splits one. Squares are summed per block in float64 (no overflow below
1e154, error far below fp32's), block sums are folded by a fixed binary tree over all blocks in
logical order. Norms of norms are never taken.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

BLOCK = 1024
"""Longest logical block, in elements."""

CHUNK = 1 << 15
"""Elements at a time, so that the float64 copies stay in cache."""


def row_size(shape: Sequence[int]) -> int:
    """Elements in one dim-0 row of a tensor of this shape; a 0-d tensor is one row of one element."""
    return math.prod(shape[1:])


def blocks_per_row(shape: Sequence[int]) -> int:
    """Logical blocks in one dim-0 row."""
    return -(-row_size(shape) // BLOCK)


def num_blocks(shape: Sequence[int]) -> int:
    """Logical blocks of a tensor of this shape."""
    return (shape[0] if len(shape) else 1) * blocks_per_row(shape)


def block_sums(rows: Tensor, shape: Sequence[int]) -> Tensor:
    """Sums of squares of the logical blocks of whole dim-0 rows.

    `rows` holds consecutive whole rows of a tensor of shape `shape`, flattened or not, in any float
    dtype. Returns float64, one number a block, in logical order.
    """
    width = row_size(shape)
    if rows.numel() == 0:
        return rows.new_zeros(0, dtype=torch.float64)
    matrix = rows.reshape(-1, width)
    pieces = blocks_per_row(shape)
    sums = []
    for part in matrix.split(max(1, CHUNK // width)):
        squares = part.to(torch.float64, copy=True)  # squared in place: float64 gradients must stay
        squares.mul_(squares)
        if pieces > 1:
            padded = torch.nn.functional.pad(squares, (0, pieces * BLOCK - width))
            squares = padded.view(-1, BLOCK)
        # A row's sum does not depend on the rows beside it: the reduction runs along contiguous memory.
        sums.append(squares.sum(dim=1))
    return torch.cat(sums)


def norm_of(sums: Tensor) -> float:
    """The L2 norm from all block sums, float64 [num_blocks] in logical order."""
    if sums.numel() == 0:
        return 0.0
    while sums.numel() > 1:
        if sums.numel() % 2:
            sums = torch.nn.functional.pad(sums, (0, 1))
        pairs = sums.view(-1, 2)
        sums = pairs[:, 0] + pairs[:, 1]
    return math.sqrt(float(sums.item()))
