"""Counter-based random numbers: a value is a pure function of (key, logical index).

Nouns: a *key* (64 bits, BLAKE3 of its parts), a *stream* (the endless sequence that a key names,
SplitMix64 of Steele, Lea & Flood 2014) and `Streams` (the keys that a microbatch carries).

There is no generator and no state: any slice of a stream is computed alone and equals the slice
of the whole, so ranks, shards, workers and restarts cannot change a draw. Integers are exact
everywhere. Floating point uses only operations that IEEE 754 rounds correctly (+ - * / sqrt), one
at a time, so uniform and normal draws have the same bits on every processor, device, thread
count and vector width; library logarithms and cosines do not promise that. This module refuses
to read or move torch's global generators.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import blake3
import torch
from torch import Tensor

from elinvar.errors import InvalidInput

_MASK = 2**64 - 1
_GAMMA = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB

# Elements computed at once: the working set stays in the cache. Values do not depend on it.
_CHUNK = 2**15

# log(m) = 2 s (1 + s²/3 + s⁴/5 + …) with s = (m-1)/(m+1); |s| <= 0.172 leaves less than 2^-57 after s²⁰.
_LOG_SERIES = tuple(2.0 / (2 * n + 1) for n in range(11))
# Taylor series in x², |x| <= π/4; what is left out is below 2^-56.
_SIN_SERIES = tuple((-1.0) ** n / math.factorial(2 * n + 1) for n in range(9))
_COS_SERIES = tuple((-1.0) ** n / math.factorial(2 * n) for n in range(10))
_LN_2 = math.log(2)
_HALF_PI = math.pi / 2
_SQRT_HALF = math.sqrt(0.5)


def key(*parts: int | str) -> int:
    """The 64-bit key of `parts`: BLAKE3 of an unambiguous encoding (type, length, text of each part).

    Returns an int in [0, 2^64). `key("a", 1)`, `key("a1")`, `key("a", "1")` all differ.
    """
    hasher = blake3.blake3()
    for part in parts:
        text = str(part).encode()
        hasher.update(b"%c%d:%b" % (b"s" if isinstance(part, str) else b"i", len(text), text))
    return int.from_bytes(hasher.digest(length=8), "little")


def bits(key: int, start: int, count: int, device: torch.device | str = "cpu") -> Tensor:
    """Elements start … start+count-1 of the stream of `key`: 64 random bits each, int64 of shape (count,).

    Element i is SplitMix64's output number i for the seed `key` (i counts from 0), read as a
    two's complement integer. Raises InvalidInput for a negative start or count.
    """
    _check_slice(start, count)
    drawn = torch.empty(count, dtype=torch.int64, device=device)
    for offset in range(0, count, _CHUNK):
        part = drawn[offset : offset + _CHUNK]
        torch.arange(part.numel(), out=part)
        # int64 arithmetic wraps, so it is arithmetic modulo 2^64.
        part.mul_(_signed(_GAMMA)).add_(_signed(key + (start + offset + 1) * _GAMMA))
        part.bitwise_xor_(_shift_right(part, 30)).mul_(_signed(_MIX_1))
        part.bitwise_xor_(_shift_right(part, 27)).mul_(_signed(_MIX_2))
        part.bitwise_xor_(_shift_right(part, 31))
    return drawn


def uniform(key: int, start: int, count: int, device: torch.device | str = "cpu") -> Tensor:
    """Elements of the uniform stream of `key`: float64 in [0, 1), multiples of 2^-53, shape (count,).

    Element i is the upper 53 bits of element i of `bits`.
    """
    return _shift_right(bits(key, start, count, device), 11).double().mul_(2.0**-53)


def normal(key: int, start: int, count: int, device: torch.device | str = "cpu") -> Tensor:
    """Elements of the standard normal stream of `key`: float64 of shape (count,), by Box & Muller (1958).

    Pair i, elements 2i and 2i+1, comes from elements 2i and 2i+1 of `uniform`: radius
    sqrt(-2 log(1-u)) and angle 2πv give r·cos and r·sin. |values| < 8.6.
    """
    _check_slice(start, count)
    first = start - start % 2
    whole = count + (start - first)
    whole += whole % 2
    drawn = torch.empty(whole, dtype=torch.float64, device=device)
    for offset in range(0, whole, _CHUNK):
        part = drawn[offset : offset + _CHUNK].view(-1, 2)
        pairs = uniform(key, first + offset, part.numel(), device).view(-1, 2)
        radius = _log(1.0 - pairs[:, 0]).mul_(-2.0).sqrt_()
        cos, sin = _cos_sin_turns(pairs[:, 1])
        torch.mul(radius, cos, out=part[:, 0])
        torch.mul(radius, sin, out=part[:, 1])
    return drawn[start - first : start - first + count]


def keep_mask(key: int, shape: Sequence[int], drop: float, device: torch.device | str = "cpu") -> Tensor:
    """Which elements a dropout of probability `drop` keeps: bool of `shape`, by logical (row-major) index.

    Element i is kept where the upper 53 bits of element i of `bits` reach `drop`·2^53: an integer
    comparison, exact on every device. Raises InvalidInput unless 0 <= drop < 1.
    """
    threshold = _threshold(drop)
    count = math.prod(shape)
    kept = torch.empty(count, dtype=torch.bool, device=device)
    for offset in range(0, count, _CHUNK):
        part = kept[offset : offset + _CHUNK]
        torch.ge(_shift_right(bits(key, offset, part.numel(), device), 11), threshold, out=part)
    return kept.view(*shape)


def dropout(values: Tensor, drop: float, key: int) -> Tensor:
    """`values` with the elements that `keep_mask` leaves out set to 0 and the kept ones over (1 - drop).

    Same shape and dtype. At drop 0 the values themselves, and no draw.
    """
    if drop == 0.0:
        return values
    kept = keep_mask(key, values.shape, drop, values.device)
    return values.masked_fill(kept.logical_not_(), 0.0) * (1.0 / (1.0 - drop))


@dataclass(frozen=True, slots=True)
class Streams:
    """The random streams of microbatch `microbatch` (0..M-1) of step `step` (first is 1).

    Two microbatches share no key, and a microbatch computed anywhere, at any time, has the same.
    """

    seed: int
    step: int
    microbatch: int

    def key(self, use: str, layer: int = 0) -> int:
        """The key of one use in one layer, such as ("dropout/attention", 3)."""
        return key(self.seed, use, self.step, self.microbatch, layer)


def _check_slice(start: int, count: int) -> None:
    if start < 0 or count < 0:
        raise InvalidInput(
            f"a slice of a random stream needs start >= 0 and count >= 0, got {start} and {count}"
        )


def _signed(value: int) -> int:
    """`value` modulo 2^64 as the two's complement integer that torch takes."""
    value &= _MASK
    return value - 2**64 if value >= 2**63 else value


def _shift_right(values: Tensor, places: int) -> Tensor:
    """Logical shift of int64: torch's shift copies the sign bit, so the copies are masked off."""
    return (values >> places).bitwise_and_(2 ** (64 - places) - 1)


def _threshold(drop: float) -> int:
    if not 0.0 <= drop < 1.0:
        raise InvalidInput(f"a dropout probability must be in [0, 1), got {drop!r}")
    return round(drop * 2**53)


def _series(coefficients: Sequence[float], square: Tensor) -> Tensor:
    """Horner's rule in `square`; multiplication and addition are rounded apart, never fused."""
    total = torch.full_like(square, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        total.mul_(square).add_(coefficient)
    return total


def _log(values: Tensor) -> Tensor:
    """Natural logarithm of float64 values in [2^-53, 1], within 1e-15 of itself."""
    mantissa, exponent = torch.frexp(values)
    small = mantissa < _SQRT_HALF
    mantissa = torch.where(small, mantissa * 2.0, mantissa)
    exponent = exponent.double() - small.double()
    ratio = (mantissa - 1.0) / (mantissa + 1.0)
    return (exponent * _LN_2).add_(ratio * _series(_LOG_SERIES, ratio * ratio))


def _cos_sin_turns(turns: Tensor) -> tuple[Tensor, Tensor]:
    """Cosine and sine of 2π·turns for float64 turns in [0, 1), within 1e-15."""
    quarters = turns * 4.0
    nearest = torch.floor(quarters + 0.5)
    # quarters - nearest is exact, in [-1/2, 1/2].
    angle = (quarters - nearest).mul_(_HALF_PI)
    square = angle * angle
    cos, sin = _series(_COS_SERIES, square), _series(_SIN_SERIES, square).mul_(angle)
    quadrant = nearest.long().bitwise_and_(3)
    odd = quadrant.bitwise_and(1).bool()
    turned_cos = torch.where(odd, sin, cos)
    turned_sin = torch.where(odd, cos, sin)
    cos_negative = (quadrant == 1) | (quadrant == 2)
    return torch.where(cos_negative, -turned_cos, turned_cos), torch.where(
        quadrant >= 2, -turned_sin, turned_sin
    )
