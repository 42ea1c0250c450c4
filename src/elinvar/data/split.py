"""Which samples are held out, and the numbering of the others, by arithmetic.

Noun: `Split`. The samples are cut into `held_out` equal stretches, and the middle one of each
stretch is held out: spread evenly over the source, the same for every seed. Training samples keep
their order and are numbered without the gaps; both numberings go both ways without a table of the
samples (only the held-out ones are listed).
"""

from functools import cached_property
from typing import Any, final

import numpy as np
from numpy.typing import NDArray


@final
class Split:
    """`num_samples` samples of which `held_out` are never trained on (held_out < num_samples)."""

    def __init__(self, num_samples: int, held_out: int) -> None:
        assert 0 <= held_out < num_samples, (num_samples, held_out)
        self.num_samples = num_samples
        self.held_out = held_out

    @property
    def num_training(self) -> int:
        """Samples that are trained on."""
        return self.num_samples - self.held_out

    @cached_property
    def held_out_samples(self) -> tuple[int, ...]:
        """The held-out samples, ascending."""
        return tuple((2 * j + 1) * self.num_samples // (2 * self.held_out) for j in range(self.held_out))

    def is_held_out(self, sample: int) -> bool:
        """Whether `sample` is never trained on."""
        at = int(np.searchsorted(self._held, np.uint64(sample)))
        return at < self.held_out and self.held_out_samples[at] == sample

    def sample_of(self, training: NDArray[Any]) -> NDArray[np.uint64]:
        """The samples with these training numbers, 0 <= number < num_training."""
        numbers = np.asarray(training, dtype=np.uint64)
        # Held-out sample j comes before training number i where held[j] - j <= i.
        before = np.searchsorted(
            self._held - np.arange(self.held_out, dtype=np.uint64), numbers, side="right"
        )
        return numbers + before.astype(np.uint64)

    def training_of(self, sample: int) -> int:
        """The training number of a sample that is not held out."""
        assert not self.is_held_out(sample), sample
        return sample - int(np.searchsorted(self._held, np.uint64(sample)))

    @cached_property
    def _held(self) -> NDArray[np.uint64]:
        return np.array(self.held_out_samples, dtype=np.uint64)
