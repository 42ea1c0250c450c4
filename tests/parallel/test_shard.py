"""The layout: every element of every tensor in one shard, whole rows only, nothing padded."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from elinvar.numerics.norm import block_sums, num_blocks
from elinvar.parallel.shard import Layout, Piece

SHAPES = st.lists(
    st.one_of(
        st.just(()),
        st.tuples(st.integers(0, 7)),
        st.tuples(st.integers(0, 9), st.sampled_from([0, 1, 3, 16, 1025])),
        st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 5)),
    ),
    min_size=1,
    max_size=6,
)


def layout_of(shapes, num_ranks):
    return Layout({f"t{i}": shape for i, shape in enumerate(shapes)}, num_ranks)


@given(SHAPES, st.integers(1, 9))
def test_every_element_lies_in_one_shard(shapes, num_ranks):
    layout = layout_of(shapes, num_ranks)
    seen = {name: torch.zeros(math.prod(shape), dtype=torch.int64) for name, shape in layout.shapes.items()}
    order = []
    for rank in range(num_ranks):
        pieces = layout.shard(rank)
        assert sum(piece.num_elements for piece in pieces) == layout.sizes[rank]
        for piece in pieces:
            seen[piece.name][piece.start : piece.stop] += 1
            order.append((list(layout.shapes).index(piece.name), piece.start))
    assert all(bool((count == 1).all()) for count in seen.values())
    assert order == sorted(order)
    assert sum(layout.sizes) == layout.num_elements == sum(map(math.prod, shapes))


@given(SHAPES, st.integers(1, 9))
def test_shards_hold_whole_rows_and_whole_blocks(shapes, num_ranks):
    layout = layout_of(shapes, num_ranks)
    for rank in range(num_ranks):
        for piece in layout.shard(rank):
            width = math.prod(piece.shape[1:])
            assert piece.start % width == piece.stop % width == 0
            rows = torch.ones(piece.num_elements)
            assert piece.num_blocks == block_sums(rows, piece.shape).numel()
    total = sum(piece.num_blocks for rank in range(num_ranks) for piece in layout.shard(rank))
    assert total == sum(num_blocks(shape) for shape in shapes)


@given(SHAPES, st.integers(1, 9), st.integers(0, 100))
def test_pieces_find_their_elements(shapes, num_ranks, seed):
    layout = layout_of(shapes, num_ranks)
    generator = torch.Generator().manual_seed(seed)
    whole = {name: torch.randn(shape, generator=generator) for name, shape in layout.shapes.items()}
    flat = torch.cat([tensor.reshape(-1) for tensor in whole.values()])
    for rank, (start, stop) in enumerate(pairwise(layout.bounds)):
        pieces = layout.shard(rank)
        joined = [piece.of(whole[piece.name]) for piece in pieces]
        expected = flat[start:stop]
        assert torch.equal(torch.cat(joined) if joined else torch.zeros(0), expected)
        for part, again in zip(joined, layout.split(expected, pieces), strict=True):
            assert torch.equal(part, again)


def test_more_ranks_than_rows_leave_ranks_empty():
    layout = layout_of([(2, 5)], 6)
    assert sum(size > 0 for size in layout.sizes) == 2
    assert [rank for rank in range(6) if layout.shard(rank) == ()] == [
        rank for rank, size in enumerate(layout.sizes) if size == 0
    ]
    assert layout.split(torch.zeros(0), ()) == []


def test_shards_are_even_where_rows_allow_it():
    layout = layout_of([(64, 16), (16,), (48, 16)], 4)
    assert max(layout.sizes) - min(layout.sizes) <= 2 * 16


@pytest.mark.parametrize("num_ranks", [1, 2, 5])
def test_whole_does_not_know_ranks(num_ranks):
    layout = layout_of([(3, 4), (), (5,)], num_ranks)
    assert layout.whole() == (
        Piece("t0", (3, 4), 0, 12),
        Piece("t1", (), 0, 1),
        Piece("t2", (5,), 0, 5),
    )


def test_a_piece_is_a_view():
    tensor = torch.zeros(3, 4, requires_grad=True)
    Piece("a", (3, 4), 4, 8).of(tensor).fill_(1.0)
    assert tensor.tolist() == [[0.0] * 4, [1.0] * 4, [0.0] * 4]
