"""The fold against its recursive definition, written out with parentheses, and bit for bit in fp32."""

import itertools
import math
import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from elinvar.numerics import reduce
from elinvar.numerics.reduce import Fold, fold_scalars
from elinvar.plan.ownership import aligned_nodes, most_sums_held, owners


class Symbol:
    """What the fold does to a tensor, as text."""

    def __init__(self, text):
        self.text = text


def add_in_place(left, right):
    """Stands for `torch._foreach_add_`."""
    if right == 0.0:
        for symbol in left:
            symbol.text = f"{symbol.text}+0"
        return
    for a, b in zip(left, right, strict=True):
        a.text = f"({a.text}+{b.text})"


@pytest.fixture
def symbolic(monkeypatch):
    monkeypatch.setattr(reduce, "torch", SimpleNamespace(_foreach_add_=add_in_place))


def expression(level, index, present):
    """Node (level, index) by its definition; `present[i]` says whether leaf i has a gradient."""
    if index << level >= len(present):
        return None
    if level == 0:
        return str(index) if present[index] else None
    left = expression(level - 1, 2 * index, present)
    right = expression(level - 1, 2 * index + 1, present)
    if left is None or right is None:
        return left if right is None else right
    return f"({left}+{right})"


def finished(present):
    text = expression((len(present) - 1).bit_length(), 0, present)
    return None if text is None else f"{text}+0"


def leaf(index, presences):
    return [Symbol(str(index)) if present[index] else None for present in presences]


def texts(tensors):
    return [None if tensor is None else tensor.text for tensor in tensors]


def orders(num_leaves):
    if num_leaves <= 5:
        return list(itertools.permutations(range(num_leaves)))
    generator = random.Random(num_leaves)
    ascending = list(range(num_leaves))
    return [ascending, ascending[::-1], *(generator.sample(ascending, num_leaves) for _ in range(20))]


@pytest.mark.parametrize("num_leaves", range(1, 18))
def test_any_order_of_arrival_makes_the_same_additions(symbolic, num_leaves):
    generator = random.Random(num_leaves)
    presences = [[True] * num_leaves, [False] * num_leaves]
    presences += [[generator.random() < 0.6 for _ in range(num_leaves)] for _ in range(6)]
    for order in orders(num_leaves):
        fold = Fold(num_leaves)
        for index in order:
            fold.push((0, index), leaf(index, presences))
        assert texts(fold.root()) == [finished(present) for present in presences]


@pytest.mark.parametrize("kind", ["contiguous", "round_robin"])
@pytest.mark.parametrize("num_leaves", range(1, 18))
def test_folds_of_ranks_finish_to_the_same_additions(symbolic, num_leaves, kind):
    generator = random.Random(num_leaves)
    present = [generator.random() < 0.7 for _ in range(num_leaves)]
    presences = [[True] * num_leaves, present]
    for num_ranks in range(1, 7):
        parts = []
        for leaves in owners(num_leaves, num_ranks, kind):
            local = Fold(num_leaves)
            for index in leaves:
                local.push((0, index), leaf(index, presences))
            pending = list(local.pending())
            assert [node for node, _ in pending] == [tuple(n) for n in aligned_nodes(leaves, num_leaves)]
            parts.append(pending)
        # One node of every rank a round, as an exchange moves them.
        joint = Fold(num_leaves)
        for turn in itertools.zip_longest(*parts):
            for node, tensors in filter(None, turn):
                joint.push(node, tensors)
        assert texts(joint.root()) == [finished(p) for p in presences]


def in_float32(values, level, index):
    if index << level >= len(values):
        return None
    if level == 0:
        return values[index]
    left, right = (in_float32(values, level - 1, 2 * index + k) for k in (0, 1))
    return left if right is None else left + right


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=17), st.randoms())
def test_bits_are_those_of_the_tree_in_float32(values, generator):
    numbers = [np.float32(value) for value in values]
    with np.errstate(all="ignore"):
        expected = in_float32(numbers, (len(values) - 1).bit_length(), 0) + np.float32(0.0)
    fold = Fold(len(values))
    for index in generator.sample(range(len(values)), len(values)):
        fold.push((0, index), [torch.tensor([values[index]] * 3, dtype=torch.float32)])
    (found,) = fold.root()
    assert found.numpy().tobytes() == np.array([expected] * 3, dtype=np.float32).tobytes()


@pytest.mark.parametrize("num_leaves", range(1, 18))
def test_a_leaf_added_onto_its_left_sibling_is_the_fold_s_own_addition(symbolic, num_leaves):
    fold = Fold(num_leaves)
    for index in range(num_leaves):
        left = fold.take_left(index)
        assert (left is None) == (index % 2 == 0)
        if left is None:
            fold.push((0, index), [Symbol(str(index))])
        else:
            left[0].text = f"({left[0].text}+{index})"
            fold.push((1, index // 2), left)
    assert texts(fold.root()) == [finished([True] * num_leaves)]


def test_a_left_sibling_that_is_not_here_is_not_handed_out():
    fold = Fold(4)
    assert fold.take_left(0) is None
    assert fold.take_left(1) is None
    fold.push((0, 1), [None])
    assert fold.take_left(2) is None
    assert fold.take_left(3) is None
    assert fold.depth == 1


def test_it_is_a_tree_and_no_running_sum():
    values = [1.0, 2.0**-24, 2.0**-24]  # a running sum loses both small terms one by one
    fold = Fold(4)
    for index, value in enumerate([*values, 2.0**-24]):
        fold.push((0, index), [torch.tensor([value])])
    assert fold.root()[0].item() == 1.0 + 2.0**-23
    assert np.float32(1.0) + np.float32(2.0**-24) + np.float32(2.0**-24) + np.float32(2.0**-24) == 1.0


@pytest.mark.parametrize("num_leaves", range(1, 70))
def test_leaves_in_order_need_few_sums_at_once(num_leaves):
    fold, most = Fold(num_leaves), 0
    for index in range(num_leaves):
        most = max(most, fold.depth + 1)  # the leaf that comes is held beside the sums
        fold.push((0, index), [None])
    assert most <= math.floor(math.log2(num_leaves)) + 1
    assert most == most_sums_held(range(num_leaves), num_leaves)
    assert fold.depth == 1


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_minus_zero_never_shows(order):
    fold = Fold(2)
    for index in order:
        fold.push((0, index), [torch.tensor([-0.0, -0.0]), None if index else torch.tensor([-0.0]), None])
    both, one, none = fold.root()
    assert not torch.signbit(both).any()
    assert not torch.signbit(one).any()
    assert none is None
    assert math.copysign(1.0, fold_scalars([-0.0, -0.0])) == 1.0
    assert math.copysign(1.0, fold_scalars([-0.0])) == 1.0


def test_a_fold_that_is_not_finished_has_no_root():
    fold = Fold(3)
    with pytest.raises(ValueError, match="3 leaves is not finished"):
        fold.root()
    fold.push((0, 0), [None])
    fold.push((0, 2), [None])
    with pytest.raises(ValueError, match="not finished"):
        fold.root()
    fold.push((0, 1), [None])
    assert fold.root() == [None]
    with pytest.raises(ValueError, match="at least one leaf"):
        Fold(0)


def test_a_leaf_counts_once():
    fold = Fold(4)
    fold.push((0, 0), [None])
    with pytest.raises(AssertionError, match="twice"):
        fold.push((0, 0), [None])
    fold.push((0, 1), [None])
    fold.push((0, 0), [None])
    fold.push((0, 2), [None])
    with pytest.raises(ValueError, match="not finished"):
        fold.root()


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=40))
def test_losses_fold_along_the_same_tree(values):
    expected = in_float32(values, (len(values) - 1).bit_length(), 0) + 0.0
    found = fold_scalars(values)
    assert found == expected or (math.isnan(found) and math.isnan(expected))
