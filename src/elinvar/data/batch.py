"""A microbatch: the unit of computation, with all that its leaf of the fold depends on.

Noun: `Microbatch`. Shapes: B sequences, T tokens a sequence.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elinvar.identity import Occurrence


@dataclass(frozen=True, eq=False, slots=True)
class Microbatch:
    """Leaf `index` of `step`. Step 0 are the held-out leaves.

    `tokens_BT1` are int64 ids [B, T+1]: targets are the columns from 1 on. `weights_BT` are the
    targets' weights, float32 [B, T], or None where all are 1; a row without an occurrence fills up
    the shape and weighs 0. `seed` is the experiment's: the random streams are keyed by (seed, use,
    step, index, layer).
    """

    step: int
    index: int
    tokens_BT1: NDArray[np.int64]  # noqa: N815 - letters of the shape
    occurrences: tuple[Occurrence, ...]
    seed: int
    weights_BT: NDArray[np.float32] | None = None  # noqa: N815 - letters of the shape

    def __getstate__(self) -> tuple[Any, ...]:
        return (self.step, self.index, self.tokens_BT1, self.occurrences, self.seed, self.weights_BT)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        for name, value in zip(self.__slots__, state, strict=True):
            object.__setattr__(self, name, value)

    @property
    def num_targets(self) -> int:
        """Targets that count: those of weight 1."""
        num_sequences, num_ids = self.tokens_BT1.shape
        if self.weights_BT is None:
            return int(num_sequences * (num_ids - 1))
        return int(np.count_nonzero(self.weights_BT))

    @property
    def num_storage_bytes(self) -> int:
        """Memory that the arrays hold."""
        return self.tokens_BT1.nbytes + (0 if self.weights_BT is None else self.weights_BT.nbytes)
