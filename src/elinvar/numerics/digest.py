"""The update digest: one name for all that the next update depends on.

Nouns: `Lanes` of a logical tensor and the update digest. A tensor's lanes are two sums, modulo
2^64, of a mix of each element's bits and its logical index. Integer sums have no order, so the
lanes of a tensor are the lanes of its pieces added, however it was sharded. Equal bits give equal
digests; the mix is SplitMix64's finaliser (Steele, Lea & Flood 2014), not a cryptographic hash: it
finds accidents, not forgeries.
"""

import json
from collections.abc import Mapping, Sequence

import torch
from blake3 import blake3
from torch import Tensor

from elinvar.identity import Digest

CHUNK = 1 << 15  # elements at a time: the int64 temporaries stay in cache
_MASK = (1 << 64) - 1
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


_GOLDEN = _signed(0x9E3779B97F4A7C15)
_SECOND = _signed(0xD1B54A32D192ED03)
_MIX1 = _signed(0xBF58476D1CE4E5B9)
_MIX2 = _signed(0x94D049BB133111EB)

Lanes = tuple[int, int]


def lanes(piece: Tensor, start: int = 0) -> Lanes:
    """The lanes of a contiguous piece of a logical tensor.

    `piece` has any dtype of 1 to 8 bytes; its first element has logical index `start`. Element
    values enter by their bits, so -0.0 is not 0.0 and NaN payloads count.
    """
    flat = piece.detach().reshape(-1).view(_BITS[piece.element_size()])
    sums = torch.zeros(2, dtype=torch.int64, device=flat.device)
    for offset in range(0, flat.numel(), CHUNK):
        part = flat[offset : offset + CHUNK]
        first = start + offset
        index = torch.arange(first, first + part.numel(), dtype=torch.int64, device=flat.device)
        # A copy also where the elements are 8 bytes: it is scrambled below, the tensor must not be.
        bits = part.to(torch.int64, copy=True)
        if piece.element_size() < 8:
            bits &= (1 << (8 * piece.element_size())) - 1
        sums[0] += _mix((index * _GOLDEN) ^ bits).sum()
        sums[1] += _mix(index.add_(1).mul_(_SECOND).add_(bits.mul_(_GOLDEN))).sum()
    low, high = (int(value) & _MASK for value in sums.tolist())
    return low, high


def _mix(x: Tensor) -> Tensor:
    """SplitMix64's finaliser in place, on int64 read as unsigned: shifts are made logical by a mask."""
    x ^= (x >> 30) & ((1 << 34) - 1)
    x *= _MIX1
    x ^= (x >> 27) & ((1 << 37) - 1)
    x *= _MIX2
    x ^= (x >> 31) & ((1 << 33) - 1)
    return x


def add(parts: Sequence[Lanes]) -> Lanes:
    """The lanes of a tensor from those of disjoint pieces that cover it."""
    return sum(a for a, _ in parts) & _MASK, sum(b for _, b in parts) & _MASK


def update_digest(
    tensors: Mapping[str, tuple[str, Sequence[int], Lanes]], scalars: Mapping[str, int | str]
) -> Digest:
    """BLAKE3 over the sorted (name, dtype, shape, lanes) of all tensors and the sorted scalars.

    `tensors` maps a canonical name to (dtype name, logical shape, lanes); `scalars` are exact
    (integers and texts), never floats.
    """
    rows = [
        [name, dtype, list(shape), f"{pair[0]:016x}", f"{pair[1]:016x}"]
        for name, (dtype, shape, pair) in sorted(tensors.items())
    ]
    text = json.dumps({"tensors": rows, "scalars": dict(sorted(scalars.items()))}, separators=(",", ":"))
    return Digest(blake3(text.encode()).hexdigest())
