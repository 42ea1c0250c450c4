"""Data moved between real gloo ranks: what arrives is what was sent, and a sum is the fold's sum."""

import pytest
import rank_work
import torch

from elinvar.errors import DoesNotFit
from elinvar.numerics.norm import block_sums, norm_of
from elinvar.parallel.world import device_for
from experiments import CPU, WORLD, on_ranks

CASES = [
    (num_leaves, ownership, sharding, absent)
    for num_leaves, absent in ((1, ()), (5, ((2, "a"), ("all", "b"))), (8, ()))
    for ownership in ("contiguous", "round_robin")
    for sharding in (0, 1)
]


@pytest.mark.parametrize("size", [2, 3])
def test_movement_is_by_rank_index(size):
    for rank, found in enumerate(on_ranks(size, rank_work.move)):
        assert found["exchange"] == [
            100.0 * sender + rank
            for sender in range(size)
            for _ in range(sender + rank + 1 if (sender, rank) != (0, 1) else 0)
        ]
        assert found["rows"] == [[r, r * r] for r in range(size)]
        assert found["pieces"] == [10.0 * r + i for r in range(size) for i in range(r + 1)]
        assert found["uneven"] == [i for r in range(size) for i in range(r)]
        assert found["bytes"] == [b"", b"x" * 3000, b"\x00\xff"][:size]
        assert found["nothing"] == [b""] * size


def test_one_rank_moves_nothing():
    found = rank_work.move(WORLD)
    assert found["exchange"] == [0.0]
    assert found["rows"] == [[0, 0]]
    assert found["bytes"] == [b""]


def by_definition(num_leaves, absent):
    """The recursive definition of the fold, over the leaves' tensors; zeros where no leaf has one."""

    def node(level, index, place):
        if index << level >= num_leaves:
            return None
        if level == 0:
            return rank_work.leaf_of(index, absent=absent)[place]
        left, right = (node(level - 1, 2 * index + k, place) for k in (0, 1))
        if left is None or right is None:
            return left if right is None else right
        return left + right

    sums = [node((num_leaves - 1).bit_length(), 0, place) for place in range(len(rank_work.SHAPES))]
    shapes = rank_work.SHAPES.values()
    return [s + 0.0 if s is not None else torch.zeros(shape) for s, shape in zip(sums, shapes, strict=True)]


@pytest.mark.parametrize("size", [1, 2, 3, 6])
def test_any_ranks_and_stages_finish_the_same_sums(size):
    """Six ranks: some own no leaf, and one no row."""
    answers = on_ranks(size, rank_work.reduce_cases, CASES) if size > 1 else None
    answers = answers or [rank_work.reduce_cases(WORLD, CASES)]
    for place, (num_leaves, _, _, absent) in enumerate(CASES):
        sums = by_definition(num_leaves, absent)
        norm = norm_of(torch.cat([block_sums(s, s.shape) for s in sums]))
        whole = dict(zip(rank_work.SHAPES, sums, strict=True))
        covered = []
        for found in (answer[place] for answer in answers):
            assert found["parameters"] == [s.view(torch.int32).tolist() for s in sums]
            assert found["norm"] == norm.hex()
            for (name, start, stop), values in zip(found["pieces"], found["reduced"], strict=True):
                assert values == whole[name].reshape(-1)[start:stop].tolist()
                covered.append((name, start, stop))
        assert len(set(covered)) == len(covered)
        assert sum(stop - start for _, start, stop in covered) == sum(s.numel() for s in sums)


def test_the_sums_depend_on_their_order():
    """The data of these tests would show another order of additions."""
    leaves = [rank_work.leaf_of(index)[0] for index in range(8)]
    left_to_right = leaves[0]
    for leaf in leaves[1:]:
        left_to_right = left_to_right + leaf
    assert not torch.equal(left_to_right, by_definition(8, ())[0])


def test_a_device_that_is_not_there_is_refused():
    assert device_for("cpu", 0) == CPU
    if not torch.cuda.is_available():
        assert device_for("auto", 3) == CPU
        with pytest.raises(DoesNotFit, match=r"execution\.device is cuda"):
            device_for("cuda", 0)


def test_what_a_rank_raises_arrives():
    with pytest.raises(ZeroDivisionError):
        on_ranks(1, rank_work.fail)
