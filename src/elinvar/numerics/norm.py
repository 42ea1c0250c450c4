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
    values = rows.reshape(-1, width).double()
    squares = values * values
    pieces = blocks_per_row(shape)
    if width % BLOCK and pieces > 1:
        squares = torch.nn.functional.pad(squares, (0, pieces * BLOCK - width))
    if pieces > 1:
        squares = squares.view(-1, BLOCK)
    # The order inside a block must not depend on how many rows were handed in together, so it is
    # written out: halves are added to halves, elementwise.
    length = squares.shape[1]
    while length > 1:
        half = length // 2
        head = squares[:, :half] + squares[:, half : 2 * half]
        if length % 2:
            head[:, 0] += squares[:, length - 1]
        squares, length = head, half
    return squares.reshape(-1)


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
