"""position -> sample and back: a pure function of (data set, seed), with no execution argument.

Nouns: `Order`, position, epoch, `Permutation`. Position p lies in epoch p // n and each epoch has a
permutation of its own, so an epoch visits each training sample once. The permutation is a keyed
bijection that is computed, never stored: any position of 10⁹ samples costs microseconds, and its
inverse says at which position an epoch visits a sample.

It is a balanced Feistel network of eight rounds over the next even number of bits, walked until the
value lies in range (fewer than four walks on average). Each round mixes the whole half with a 64-bit
finaliser in which every input bit moves every output bit; a round function that only multiplies
would leave the low bit a linear function of the input, which shuffles visibly badly. Keys come from a
hash over seed, data set and epoch: sums such as seed + epoch would give seed 1 in epoch 1 the order
of seed 2 in epoch 0.
"""

from functools import lru_cache
from typing import Any, Literal, final

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from elinvar.data.split import Split
from elinvar.errors import InvalidInput
from elinvar.identity import Digest, Occurrence, SampleId

NUM_ROUNDS = 8

_FEW = 24
_MASK_64 = 2**64 - 1
_MULTIPLIERS = (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53)
"""Of the 64-bit finaliser of MurmurHash3 (Appleby), by its published constants."""


@final
class Permutation:
    """A keyed bijection of the integers 0..n-1, for any 1 <= n <= 2⁶²."""

    def __init__(self, num_values: int, key: bytes) -> None:
        assert 1 <= num_values <= 2**62, num_values
        self.num_values = num_values
        self._half_bits = max((num_values - 1).bit_length() + 1, 2) // 2
        self._half_mask = (1 << self._half_bits) - 1
        expanded = blake3(key).digest(length=8 * NUM_ROUNDS)
        self._keys = [int.from_bytes(expanded[8 * i : 8 * i + 8], "little") for i in range(NUM_ROUNDS)]

    def forward(self, value: int) -> int:
        """Where `value` goes."""
        assert 0 <= value < self.num_values, value
        while True:
            value = self._rounds(value)
            if value < self.num_values:
                return value

    def backward(self, value: int) -> int:
        """What goes to `value`."""
        assert 0 <= value < self.num_values, value
        while True:
            value = self._rounds_back(value)
            if value < self.num_values:
                return value

    def forward_all(self, values: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """`forward` of every element; few elements go one by one, which is faster."""
        if values.size < _FEW:
            return np.array([self.forward(value) for value in values.tolist()], dtype=np.uint64)
        result = self._rounds_all(values.astype(np.uint64))
        outside = np.flatnonzero(result >= self.num_values)
        while outside.size:
            walked = self._rounds_all(result[outside])
            result[outside] = walked
            outside = outside[walked >= self.num_values]
        return result

    def _rounds(self, value: int) -> int:
        left, right = value >> self._half_bits, value & self._half_mask
        for key in self._keys:
            left, right = right, left ^ (_mix(right ^ key) & self._half_mask)
        return left << self._half_bits | right

    def _rounds_back(self, value: int) -> int:
        left, right = value >> self._half_bits, value & self._half_mask
        for key in reversed(self._keys):
            left, right = right ^ (_mix(left ^ key) & self._half_mask), left
        return left << self._half_bits | right

    def _rounds_all(self, values: NDArray[np.uint64]) -> NDArray[np.uint64]:
        bits, mask = np.uint64(self._half_bits), np.uint64(self._half_mask)
        left, right = values >> bits, values & mask
        for key in self._keys:
            left, right = right, left ^ (_mix_all(right ^ np.uint64(key)) & mask)
        return left << bits | right


def _mix(value: int) -> int:
    """The finaliser: every bit of 64 moves every other with a chance of one half."""
    for multiplier in _MULTIPLIERS:
        value = (value ^ value >> 33) * multiplier & _MASK_64
    return value ^ value >> 33


def _mix_all(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    shift = np.uint64(33)
    for multiplier in _MULTIPLIERS:
        values = (values ^ values >> shift) * np.uint64(multiplier)
    return values ^ values >> shift


@final
class Order:
    """The order of the training samples of a data set of `num_samples`, of which some are held out.

    `kind` "shuffle" permutes each epoch anew; "sequential" visits the samples as they are stored.
    """

    def __init__(
        self,
        dataset: Digest,
        num_samples: int,
        seed: int,
        kind: Literal["shuffle", "sequential"] = "shuffle",
        held_out: int = 0,
    ) -> None:
        self.dataset = dataset
        self.seed = seed
        self.kind = kind
        self.split = Split(num_samples, held_out)
        # Neighbouring positions share an epoch, so a few permutations are all that is ever in use.
        self._permutation = lru_cache(maxsize=8)(self._make_permutation)

    def __reduce__(self) -> tuple[Any, ...]:
        return (Order, (self.dataset, self.split.num_samples, self.seed, self.kind, self.split.held_out))

    @property
    def epoch_length(self) -> int:
        """Positions in an epoch: the number of training samples."""
        return self.split.num_training

    def sample(self, position: int) -> Occurrence:
        """The sample at `position` (>= 0)."""
        assert position >= 0, position
        index = int(self.indices(position, position + 1)[0])
        return Occurrence(SampleId(self.dataset, index), position // self.epoch_length, position)

    def occurrences(self, start: int, stop: int) -> tuple[Occurrence, ...]:
        """The samples at positions start <= p < stop."""
        indices: list[int] = self.indices(start, stop).tolist()
        return tuple(
            Occurrence(SampleId(self.dataset, index), position // self.epoch_length, position)
            for position, index in zip(range(start, stop), indices, strict=True)
        )

    def indices(self, start: int, stop: int) -> NDArray[np.uint64]:
        """The sample indices at positions start <= p < stop, over as many epochs as they span."""
        assert 0 <= start <= stop, (start, stop)
        parts = [np.empty(0, dtype=np.uint64)]
        while start < stop:
            epoch, first = divmod(start, self.epoch_length)
            count = min(stop - start, self.epoch_length - first)
            numbers = np.arange(first, first + count, dtype=np.uint64)
            if self.kind == "shuffle":
                numbers = self._permutation(epoch).forward_all(numbers)
            parts.append(self.split.sample_of(numbers))
            start += count
        return np.concatenate(parts)

    def position(self, index: int, epoch: int) -> int:
        """The one position of `epoch` that visits sample `index`.

        InvalidInput for an index that the data set does not have, or that is held out.
        """
        if not 0 <= index < self.split.num_samples:
            raise InvalidInput(
                f"the data set has no sample {index}", [f"allowed: 0 to {self.split.num_samples - 1}"]
            )
        if self.split.is_held_out(index):
            raise InvalidInput(f"sample {index} is held out for the evaluation: no step ever sees it")
        number = self.split.training_of(index)
        if self.kind == "shuffle":
            number = self._permutation(epoch).backward(number)
        return epoch * self.epoch_length + number

    def _make_permutation(self, epoch: int) -> Permutation:
        key = f"elinvar order 1\nseed {self.seed}\ndata set {self.dataset}\nepoch {epoch}\n"
        return Permutation(self.epoch_length, key.encode("ascii"))
