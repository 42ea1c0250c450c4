"""Lanes and update digest: equal for equal bits however they are split, different for any other bits."""

import itertools
import math
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from elinvar.identity import is_digest
from elinvar.numerics.digest import CHUNK, add, lanes, update_digest

DTYPES = (
    torch.uint8,
    torch.int8,
    torch.bool,
    torch.float16,
    torch.bfloat16,
    torch.int16,
    torch.float32,
    torch.int32,
    torch.float64,
    torch.int64,
)


def mix(x):
    """SplitMix64's finaliser, as published."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) % 2**64
    return x ^ (x >> 31)


def twin(tensor, start=0):
    """The lanes in plain Python integers, from the bytes of each element."""
    size = tensor.element_size()
    raw = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    low = high = 0
    for place in range(len(raw) // size):
        bits = int.from_bytes(raw[place * size : (place + 1) * size], "little")
        index = start + place
        low += mix((index * 0x9E3779B97F4A7C15) % 2**64 ^ bits)
        high += mix(((index + 1) * 0xD1B54A32D192ED03 + bits * 0x9E3779B97F4A7C15) % 2**64)
    return low % 2**64, high % 2**64


def random_bits(dtype, count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.rand(count, generator=generator) < 0.5
    size = torch.empty(0, dtype=dtype).element_size()
    raw = torch.randint(0, 256, (count * size,), generator=generator, dtype=torch.uint8)
    return raw.view(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_lanes_are_those_of_the_twin_and_reading_changes_nothing(dtype):
    tensor = random_bits(dtype, 37)
    before = tensor.clone()
    lanes(tensor)
    assert torch.equal(tensor.view(torch.uint8), before.view(torch.uint8))
    assert lanes(tensor) == twin(tensor)
    assert lanes(tensor, 2**40 + 3) == twin(tensor, 2**40 + 3)
    assert lanes(tensor) != lanes(tensor, 1)


@given(st.lists(st.integers(0, 200), max_size=6), st.integers(0, 3))
def test_any_split_into_pieces_adds_up(cuts, seed):
    tensor = random_bits(torch.float32, 200, seed)
    borders = [0, *sorted(cuts), 200]
    parts = [lanes(tensor[a:b], a) for a, b in itertools.pairwise(borders)]
    random.Random(seed).shuffle(parts)
    assert add(parts) == lanes(tensor)


def test_a_long_tensor_is_read_in_pieces_that_do_not_show():
    tensor = random_bits(torch.bfloat16, 2 * CHUNK + 5)
    cuts = [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 5]
    assert add([lanes(tensor[a:b], a) for a, b in itertools.pairwise(cuts)]) == lanes(tensor)
    changed = tensor.clone()
    changed[-1:].view(torch.int16).bitwise_xor_(1)
    assert lanes(changed) != lanes(tensor)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.float32, torch.float64])
def test_every_bit_counts_in_both_lanes(dtype):
    tensor = random_bits(dtype, 5)
    low, high = lanes(tensor)
    raw = tensor.view(torch.uint8)
    for place in range(raw.numel()):
        for bit in range(8):
            raw[place] ^= 1 << bit
            changed = lanes(tensor)
            assert changed[0] != low
            assert changed[1] != high
            raw[place] ^= 1 << bit
    assert lanes(tensor) == (low, high)


def test_places_count():
    tensor = torch.arange(1.0, 9.0)
    found = {lanes(tensor)}
    for a in range(8):
        for b in range(a):
            swapped = tensor.clone()
            swapped[a], swapped[b] = tensor[b], tensor[a]
            found.add(lanes(swapped))
    assert len(found) == 1 + 8 * 7 // 2


def test_zeros_and_nans_are_told_apart_by_their_bits():
    zero, minus_zero = torch.tensor([0.0]), torch.tensor([-0.0])
    assert lanes(zero) != lanes(minus_zero)
    nans = [torch.tensor([bits], dtype=torch.int32).view(torch.float32) for bits in (0x7FC00000, 0x7FC00001)]
    assert all(math.isnan(nan.item()) for nan in nans)
    assert lanes(nans[0]) != lanes(nans[1])
    assert lanes(nans[0]) == lanes(nans[0].clone())


def test_zeros_in_other_numbers_differ():
    """Zero bits contribute too, so a tensor that is longer by zeros is another one."""
    found = {lanes(torch.zeros(count)) for count in range(50)}
    assert len(found) == 50
    assert lanes(torch.zeros(0)) == (0, 0)


def test_views_and_gradients_do_not_matter():
    tensor = torch.nn.Parameter(torch.randn(6, 4, generator=torch.Generator().manual_seed(1)))
    assert lanes(tensor) == lanes(tensor.detach().reshape(-1))
    assert lanes(tensor.t()) == lanes(tensor.t().contiguous())
    assert lanes(tensor.t()) != lanes(tensor)


ROW = ("float32", (2, 3), (1, 2**64 - 1))
SCALARS = {"step": 3, "cursor": "ab"}
GOLDEN_LANES = (15643556661068158912, 13835810623322297309)
GOLDEN = "611b6f523d950fb3cbeb032f716ec141c35877bd08fb15e85b21660ba1d1f39a"


def test_the_update_digest_is_pinned():
    """Folders of today must name the same states tomorrow."""
    weight = lanes(torch.arange(6, dtype=torch.float32))
    assert weight == GOLDEN_LANES
    digest = update_digest({"parameter/a": ("float32", (2, 3), weight), "b": ROW}, SCALARS)
    assert digest == GOLDEN
    assert is_digest(digest)


@pytest.mark.parametrize(
    ("tensors", "scalars"),
    [
        ({"b": ROW}, SCALARS),
        ({"a": ("float64", *ROW[1:])}, SCALARS),
        ({"a": ("float32", (3, 2), ROW[2])}, SCALARS),
        ({"a": ("float32", (6,), ROW[2])}, SCALARS),
        ({"a": ("float32", (2, 3), (2, 2**64 - 1))}, SCALARS),
        ({"a": ("float32", (2, 3), (1, 2**64 - 2))}, SCALARS),
        ({"a": ("float32", (2, 3), (2**64 - 1, 1))}, SCALARS),
        ({"a": ROW, "b": ROW}, SCALARS),
        ({}, SCALARS),
        ({"a": ROW}, {"step": 4, "cursor": "ab"}),
        ({"a": ROW}, {"step": "3", "cursor": "ab"}),
        ({"a": ROW}, {"step": 3, "cursor": "abc"}),
        ({"a": ROW}, {"step": 3}),
        ({"a": ROW}, {"step": 3, "cursor": "ab", "more": 0}),
    ],
)
def test_whatever_differs_changes_the_update_digest(tensors, scalars):
    assert update_digest(tensors, scalars) != update_digest({"a": ROW}, SCALARS)


def test_the_order_of_names_does_not_matter():
    other = ("float32", (1,), (5, 6))
    assert update_digest({"a": ROW, "b": other}, SCALARS) == update_digest(
        {"b": other, "a": ROW}, {"cursor": "ab", "step": 3}
    )
    assert update_digest({"a": ROW, "b": other}, SCALARS) != update_digest({"a": other, "b": ROW}, SCALARS)
