"""The global norm: close to exact, and the same bits however rows are split."""

import math
import random

import pytest
import torch

from elinvar.numerics.norm import BLOCK, block_sums, blocks_per_row, norm_of, num_blocks, row_size

WIDTHS = (1, 2, 3, 5, 7, 16, 1000, 1023, 1024, 1025, 2047, 2500)


def values_of(*shape, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def exact(tensor):
    return math.sqrt(math.fsum(value * value for value in tensor.double().reshape(-1).tolist()))


def exact_sums(tensor):
    """Block sums without any rounding of sums."""
    rows = tensor.double().reshape(len(tensor), -1).tolist()
    return [
        math.fsum(value * value for value in row[i : i + BLOCK])
        for row in rows
        for i in range(0, len(row), BLOCK)
    ]


def twin_norm(sums):
    while len(sums) > 1:
        sums = [*sums, 0.0] if len(sums) % 2 else sums
        sums = [sums[i] + sums[i + 1] for i in range(0, len(sums), 2)]
    return math.sqrt(sums[0])


@pytest.mark.parametrize("width", WIDTHS)
def test_it_is_the_norm(width):
    tensor = values_of(7, width, seed=width)
    norm = norm_of(block_sums(tensor, tensor.shape))
    assert norm == pytest.approx(exact(tensor), rel=1e-14)
    assert norm == pytest.approx(float(torch.linalg.vector_norm(tensor.double())), rel=1e-14)


@pytest.mark.parametrize("width", WIDTHS)
def test_blocks_are_summed_alone_and_folded_pair_by_pair(width):
    tensor = values_of(3, width, seed=width + 1)
    before = tensor.clone()
    sums = block_sums(tensor, tensor.shape)
    assert sums.tolist() == pytest.approx(exact_sums(tensor), rel=1e-14)
    assert norm_of(sums) == twin_norm(sums.tolist())
    assert sums.dtype == torch.float64
    assert sums.numel() == num_blocks(tensor.shape)
    assert torch.equal(tensor, before)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("width", [*range(1, 36), 100, 511, 1023, 1024, 1025, 3000])
def test_a_row_has_the_same_bits_alone_and_beside_any_others(width, threads):
    """Vector kernels treat narrow, wide, few and many rows in different ways; sums must not."""
    num_rows = 70
    tensor = values_of(num_rows, width, seed=width)
    number = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        alone = torch.cat([block_sums(row, tensor.shape) for row in tensor])
        for count in (2, 3, 5, 33, 64, 65, num_rows):
            beside = block_sums(tensor[:count], tensor.shape)
            assert torch.equal(beside, alone[: len(beside)])
        assert torch.equal(block_sums(tensor[7:], tensor.shape), alone[7 * blocks_per_row(tensor.shape) :])
    finally:
        torch.set_num_threads(number)


@pytest.mark.parametrize("width", WIDTHS)
def test_any_split_into_rows_gives_the_same_bits(width):
    num_rows = 24
    tensor = values_of(num_rows, width, seed=width + 2)
    whole = norm_of(block_sums(tensor, tensor.shape)).hex()
    generator = random.Random(width)
    for _ in range(8):
        cuts = sorted(generator.sample(range(num_rows + 1), generator.randint(0, 6)))
        parts = [tensor[a:b] for a, b in zip([0, *cuts], [*cuts, num_rows], strict=True)]
        flat = [block_sums(part.reshape(-1), tensor.shape) for part in parts]
        assert norm_of(torch.cat(flat)).hex() == whole


def test_neighbours_in_memory_change_nothing():
    """The same rows at another alignment and from a strided tensor."""
    wide = values_of(9, 1030)
    rows = wide[:, 3:1028]
    assert torch.equal(block_sums(rows, rows.shape), block_sums(rows.clone(), rows.shape))
    flat = torch.cat([torch.zeros(1), rows.reshape(-1)])[1:]
    assert torch.equal(block_sums(flat, rows.shape), block_sums(rows.clone(), rows.shape))


@pytest.mark.parametrize(
    ("shape", "blocks"),
    [((), 1), ((1,), 1), ((5,), 5), ((0,), 0), ((0, 3), 0), ((3, 0), 0), ((2, 3, 500), 4)],
)
def test_any_shape_has_its_blocks(shape, blocks):
    tensor = values_of(*shape)
    assert num_blocks(shape) == blocks == block_sums(tensor, shape).numel()
    assert norm_of(block_sums(tensor, shape)) == pytest.approx(exact(tensor), rel=1e-14)
    assert blocks_per_row(shape) == -(-row_size(shape) // 1024)


def test_a_block_never_crosses_a_row():
    tensor = values_of(3, 1500)
    sums = block_sums(tensor, tensor.shape)
    for row, (first, second) in zip(tensor.double(), sums.view(3, 2).tolist(), strict=True):
        assert first == pytest.approx(float((row[:1024] ** 2).sum()), rel=1e-14)
        assert second == pytest.approx(float((row[1024:] ** 2).sum()), rel=1e-14)


@pytest.mark.parametrize("size", [3e38, 1e-38, 1e-45])
def test_huge_and_tiny_values_neither_overflow_nor_vanish(size):
    tensor = torch.full((4, 100), size, dtype=torch.float32)
    norm = norm_of(block_sums(tensor, tensor.shape))
    assert norm == pytest.approx(20 * float(tensor[0, 0]), rel=1e-14)
    assert norm > 0


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("place", [0, 700, 1499])
def test_what_is_not_finite_shows(bad, place):
    tensor = values_of(2, 1500)
    tensor[1, place] = bad
    assert not math.isfinite(norm_of(block_sums(tensor, tensor.shape)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_any_float_dtype(dtype):
    tensor = values_of(3, 50, dtype=dtype)
    assert norm_of(block_sums(tensor, tensor.shape)) == pytest.approx(exact(tensor), rel=1e-14)


def test_nothing_has_norm_zero():
    assert norm_of(torch.zeros(0, dtype=torch.float64)) == 0.0
