"""Streams against a twin in plain Python: integers exactly, and floating point bit for bit."""

import math

import blake3
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from elinvar.errors import InvalidInput
from elinvar.numerics import streams
from elinvar.numerics.streams import Streams, bits, dropout, keep_mask, key, normal, uniform

KEYS = st.integers(0, 2**64 - 1)


def twin_bits(seed, index):
    """SplitMix64's output number `index`, as published: add the gamma, then mix."""
    z = (seed + (index + 1) * 0x9E3779B97F4A7C15) % 2**64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % 2**64
    return z ^ (z >> 31)


def twin_uniform(seed, index):
    return (twin_bits(seed, index) >> 11) / 2**53


def twin_normal(seed, index):
    """Box-Muller by the C library, independent of the series in the module."""
    u, v = twin_uniform(seed, index - index % 2), twin_uniform(seed, index - index % 2 + 1)
    radius, angle = math.sqrt(-2 * math.log1p(-u)), 2 * math.pi * v
    return radius * (math.sin(angle) if index % 2 else math.cos(angle))


def horner(coefficients, square):
    total = coefficients[-1]
    for coefficient in reversed(coefficients[:-1]):
        total = total * square + coefficient
    return total


def twin_normal_exact(seed, index):
    """The module's own steps on Python floats, which round every operation by IEEE 754."""
    u, v = twin_uniform(seed, index - index % 2), twin_uniform(seed, index - index % 2 + 1)
    mantissa, exponent = math.frexp(1.0 - u)
    if mantissa < math.sqrt(0.5):
        mantissa, exponent = mantissa * 2, exponent - 1
    ratio = (mantissa - 1) / (mantissa + 1)
    log = exponent * math.log(2) + ratio * horner(streams._LOG_SERIES, ratio * ratio)
    nearest = math.floor(v * 4 + 0.5)
    angle = (v * 4 - nearest) * (math.pi / 2)
    cos = horner(streams._COS_SERIES, angle * angle)
    sin = horner(streams._SIN_SERIES, angle * angle) * angle
    cos, sin = [(cos, sin), (-sin, cos), (-cos, -sin), (sin, -cos)][nearest % 4]
    return math.sqrt(log * -2.0) * (sin if index % 2 else cos)


def test_bits_are_splitmix64():
    published = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    assert [value % 2**64 for value in bits(1234567, 0, 5).tolist()] == published
    assert [twin_bits(1234567, index) for index in range(5)] == published


@given(KEYS, st.integers(0, 2**62), st.integers(0, 70))
def test_bits_equal_the_twin_at_any_index(seed, start, count):
    got = [value % 2**64 for value in bits(seed, start, count).tolist()]
    assert got == [twin_bits(seed, start + i) for i in range(count)]


@given(KEYS, st.integers(0, 2**40), st.integers(0, 33))
def test_uniform_and_normal_equal_the_twin_bit_for_bit(seed, start, count):
    assert uniform(seed, start, count).tolist() == [twin_uniform(seed, start + i) for i in range(count)]
    assert normal(seed, start, count).tolist() == [twin_normal_exact(seed, start + i) for i in range(count)]


def test_normal_is_box_muller_within_rounding():
    got = normal(key("accuracy"), 0, 4000).numpy()
    reference = np.array([twin_normal(key("accuracy"), index) for index in range(4000)])
    assert np.abs(got - reference).max() < 4e-15


def test_log_and_cosine_are_accurate_over_their_whole_range():
    edges = torch.tensor([2.0**-53, 2.0**-52, 0.5, 1 - 2.0**-53, 1.0, math.sqrt(0.5)], dtype=torch.float64)
    values = torch.cat((edges, 1 - uniform(key("log"), 0, 20000)))
    relative = (streams._log(values) - values.log()).abs() / values.log().abs().clamp(min=1e-300)
    assert relative.max() < 1e-15
    turns = torch.cat((torch.arange(64, dtype=torch.float64) / 64, uniform(key("turns"), 0, 20000)))
    cos, sin = streams._cos_sin_turns(turns)
    assert (cos - (turns * 2 * math.pi).cos()).abs().max() < 1e-15
    assert (sin - (turns * 2 * math.pi).sin()).abs().max() < 1e-15
    exact = streams._cos_sin_turns(torch.tensor([0.0, 0.25, 0.5, 0.75], dtype=torch.float64))
    assert [cosine.tolist() for cosine in exact] == [[1, 0, -1, 0], [0, 1, 0, -1]]


@pytest.mark.parametrize("draw", [bits, uniform, normal])
@given(st.integers(0, 70000), st.integers(0, 3000))
def test_a_slice_is_the_slice_of_the_whole(draw, start, count):
    whole = draw(99, 0, 73000)
    assert torch.equal(draw(99, start, count), whole[start : start + count])


@pytest.mark.parametrize("draw", [bits, uniform, normal])
def test_threads_change_nothing(draw):
    one = draw(7, 5, 300_001)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert torch.equal(draw(7, 5, 300_001), one)
    finally:
        torch.set_num_threads(threads)


def test_global_generators_are_neither_read_nor_moved():
    torch.manual_seed(1)
    before, first = torch.get_rng_state(), normal(3, 0, 100)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert torch.equal(normal(3, 0, 100), first)


def test_moments_of_normal_and_uniform():
    n = 1_000_000
    values = normal(key("moments"), 0, n).numpy()
    # Standard errors of the first four moments of n normals: 1, √2, √15, √96 over √n.
    for power, expected, spread in [(1, 0, 1), (2, 1, 2**0.5), (3, 0, 15**0.5), (4, 3, 96**0.5)]:
        assert abs((values**power).mean() - expected) < 4 * spread / n**0.5
    assert abs(np.corrcoef(values[::2], values[1::2])[0, 1]) < 4 / (n / 2) ** 0.5
    assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 4 / n**0.5
    drawn = uniform(key("moments"), 0, n).numpy()
    assert drawn.min() >= 0 and drawn.max() < 1
    cells = np.histogram(drawn, bins=256, range=(0, 1))[0]
    chi_square = ((cells - n / 256) ** 2 / (n / 256)).sum()
    assert abs(chi_square - 255) < 4 * (2 * 255) ** 0.5


def test_keys_of_different_parts_differ():
    parts = [
        (),
        ("",),
        ("", ""),
        (0,),
        (1,),
        ("1",),
        (-1,),
        ("a", 1),
        ("a1",),
        ("a", "1"),
        (1, "a"),
        (11,),
        (1, 1),
    ]
    parts += [("1:a",), ("s1:a",), (2**64,), (2**64 + 1,), ("a", "b"), ("ab", ""), ("", "ab")]
    assert len({key(*each) for each in parts}) == len(parts)
    assert all(0 <= key(*each) < 2**64 for each in parts)


def test_keys_do_not_change_between_releases():
    # A change here would give every run other initial weights and masks under the same digest.
    encoded = b"i1:0" + b"s4:init" + b"s16:embedding.weight"
    assert key(0, "init", "embedding.weight") == int.from_bytes(blake3.blake3(encoded).digest()[:8], "little")
    assert key(0, "init", "embedding.weight") == 11645138893503524125
    expected = ["-0x1.1dff16e79233dp+0", "0x1.d35d0d5ea87d0p-5", "0x1.ce1a65ba1aba4p-1"]
    assert [value.hex() for value in normal(key("release"), 0, 3).tolist()] == expected


def test_streams_of_microbatches_share_no_key():
    keys = {
        Streams(seed, step, microbatch).key(use, layer)
        for seed in (0, 1)
        for step in (1, 2, 12)
        for microbatch in (0, 1, 2)
        for use in ("dropout/attention", "dropout/feed_forward")
        for layer in (0, 1, 11)
    }
    assert len(keys) == 2 * 3 * 3 * 2 * 3
    assert Streams(3, 4, 5).key("use", 6) == key(3, "use", 4, 5, 6)


@given(st.floats(0, 1, exclude_max=True), st.integers(1, 40))
def test_keep_mask_compares_integers(drop, count):
    threshold = round(drop * 2**53)
    expected = [(twin_bits(11, index) >> 11) >= threshold for index in range(count)]
    assert keep_mask(11, (count,), drop).tolist() == expected


def test_keep_mask_is_by_logical_index_and_keeps_its_share():
    mask = keep_mask(5, (7, 100, 1001), 0.3)
    assert torch.equal(mask.view(-1)[:70_000], keep_mask(5, (70, 1000), 0.3).view(-1))
    assert torch.equal(keep_mask(5, (300, 400), 0.25).view(-1), uniform(5, 0, 120_000) >= 0.25)
    n = mask.numel()
    assert abs(mask.double().mean() - 0.7) < 4 * (0.21 / n) ** 0.5
    assert bool(keep_mask(5, (1000,), 0.0).all())


def test_dropout_scales_what_it_keeps_and_passes_gradients_there_only():
    values = torch.arange(1.0, 2001.0, requires_grad=True)
    mask = keep_mask(8, (2000,), 0.25)
    dropped = dropout(values, 0.25, 8)
    assert torch.equal(dropped, torch.where(mask, values * (1 / 0.75), torch.zeros(())))
    dropped.sum().backward()
    assert torch.equal(values.grad != 0, mask)
    assert dropout(values, 0.0, 8) is values


@pytest.mark.parametrize("drop", [-0.1, 1.0, math.nan])
def test_impossible_dropout_is_refused(drop):
    with pytest.raises(InvalidInput, match=r"must be in \[0, 1\)"):
        keep_mask(1, (3,), drop)


def test_negative_slices_are_refused():
    with pytest.raises(InvalidInput, match="start >= 0"):
        bits(1, -1, 3)
    with pytest.raises(InvalidInput, match="start >= 0"):
        normal(1, 0, -3)
