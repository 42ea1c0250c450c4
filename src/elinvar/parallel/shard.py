"""Which rank owns which rows of which tensors.

Nouns: `Layout`, the logical tensors in canonical order cut into one shard a rank on dim-0 row
borders; `Piece`, a run of rows of one tensor, in elements of the flattened logical tensor. A shard
may be empty, and nothing is padded: storage is not semantics.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from torch import Tensor

from elinvar.numerics.norm import blocks_per_row, row_size
from elinvar.plan.ownership import shard_bounds


@dataclass(frozen=True)
class Piece:
    """Elements [start, stop) of the flattened logical tensor `name`."""

    name: str
    shape: tuple[int, ...]
    start: int
    stop: int

    def of(self, tensor: Tensor) -> Tensor:
        """This piece of a whole contiguous tensor, as a 1-D view."""
        return tensor.detach().view(-1)[self.start : self.stop]

    @property
    def num_elements(self) -> int:
        """Elements in the piece."""
        return self.stop - self.start

    @property
    def num_blocks(self) -> int:
        """Logical blocks in the piece (it holds whole rows)."""
        width = row_size(self.shape)
        return self.num_elements // width * blocks_per_row(self.shape) if width else 0


class Layout:
    """Logical tensors by name, in canonical order, and the shard of each of `num_ranks` ranks."""

    def __init__(self, shapes: Mapping[str, Sequence[int]], num_ranks: int) -> None:
        self.shapes = {name: tuple(shape) for name, shape in shapes.items()}
        self.num_ranks = num_ranks
        rows = [
            size
            for shape in self.shapes.values()
            for size in [row_size(shape)] * (shape[0] if shape else 1)
            if size
        ]
        self.bounds = shard_bounds(rows, num_ranks)
        self.sizes = tuple(stop - start for start, stop in zip(self.bounds, self.bounds[1:], strict=False))
        ends = list(accumulate(math.prod(shape) for shape in self.shapes.values()))
        self._offsets = dict(zip(self.shapes, [0, *ends], strict=False))

    @property
    def num_elements(self) -> int:
        """Elements of all logical tensors."""
        return self.bounds[-1]

    def whole(self) -> tuple[Piece, ...]:
        """Every tensor as one piece."""
        return tuple(Piece(name, shape, 0, math.prod(shape)) for name, shape in self.shapes.items())

    def shard(self, rank: int) -> tuple[Piece, ...]:
        """The pieces of `rank`, in canonical order; empty where there are fewer rows than ranks."""
        first, last = self.bounds[rank], self.bounds[rank + 1]
        pieces = []
        for name, shape in self.shapes.items():
            offset, size = self._offsets[name], math.prod(shape)
            start, stop = max(first, offset), min(last, offset + size)
            if start < stop:
                pieces.append(Piece(name, shape, start - offset, stop - offset))
        return tuple(pieces)

    def split(self, flat: Tensor, pieces: Sequence[Piece]) -> list[Tensor]:
        """Views of `flat`, the concatenation of `pieces`, one a piece."""
        return list(flat.split([piece.num_elements for piece in pieces])) if pieces else []
