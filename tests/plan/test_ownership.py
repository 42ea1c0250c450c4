"""Ownership and the fold's tree, against the recursive definition and with symbolic sums."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elinvar.plan.ownership import aligned_nodes, most_sums_held, owners, root, shard_bounds

KINDS = ("contiguous", "round_robin")


def expression(level, index, num_microbatches):
    """The reference: the recursive definition of a node, written out with its parentheses."""
    if index << level >= num_microbatches:
        return None
    if level == 0:
        return str(index)
    left = expression(level - 1, 2 * index, num_microbatches)
    right = expression(level - 1, 2 * index + 1, num_microbatches)
    return left if right is None else f"({left}+{right})"


def finish(sums, node, num_microbatches):
    """Finish the tree over sums that were computed elsewhere, each at its node."""
    level, index = node
    if index << level >= num_microbatches:
        return None
    if node in sums:
        return sums[node]
    left = finish(sums, (level - 1, 2 * index), num_microbatches)
    right = finish(sums, (level - 1, 2 * index + 1), num_microbatches)
    return left if right is None else f"({left}+{right})"


def leaves_below(node, num_microbatches):
    level, index = node
    return set(range(index << level, min((index + 1) << level, num_microbatches)))


@pytest.mark.parametrize("kind", KINDS)
def test_every_leaf_has_one_owner_and_the_finished_tree_is_the_direct_fold(kind):
    for num_microbatches in range(1, 34):
        top = (num_microbatches - 1).bit_length()
        direct = expression(top, 0, num_microbatches)
        assert root(num_microbatches) == (top, 0)
        for num_ranks in range(1, 10):
            owned = owners(num_microbatches, num_ranks, kind)
            assert len(owned) == num_ranks
            assert sorted(leaf for leaves in owned for leaf in leaves) == list(range(num_microbatches))
            sums, covered = {}, []
            for leaves in owned:
                for node in aligned_nodes(leaves, num_microbatches):
                    sums[tuple(node)] = expression(*node, num_microbatches)
                    covered += sorted(leaves_below(node, num_microbatches))
            assert sorted(covered) == list(range(num_microbatches))
            assert finish(sums, (top, 0), num_microbatches) == direct


@pytest.mark.parametrize("kind", KINDS)
def test_loads_differ_by_at_most_one_leaf_and_lower_ranks_carry_more(kind):
    for num_microbatches in range(1, 34):
        for num_ranks in range(1, 10):
            loads = [len(leaves) for leaves in owners(num_microbatches, num_ranks, kind)]
            assert max(loads) - min(loads) <= 1
            assert loads == sorted(loads, reverse=True)


def test_named_cases():
    assert owners(8, 3, "contiguous") == ((0, 1, 2), (3, 4, 5), (6, 7))
    assert owners(8, 3, "round_robin") == ((0, 3, 6), (1, 4, 7), (2, 5))
    assert owners(2, 4, "contiguous") == ((0,), (1,), (), ())
    assert aligned_nodes((0, 1, 2), 8) == ((1, 0), (0, 2))
    assert aligned_nodes((4,), 5) == ((2, 1),)
    assert aligned_nodes((4, 5), 6) == ((2, 1),)
    assert aligned_nodes((), 5) == ()
    assert aligned_nodes(range(5), 5) == ((3, 0),)
    assert aligned_nodes((0,), 1) == ((0, 0),)


@given(st.integers(1, 40).flatmap(lambda m: st.tuples(st.just(m), st.sets(st.integers(0, m - 1)))))
def test_nodes_are_maximal_for_any_set_of_leaves(case):
    num_microbatches, leaves = case
    nodes = aligned_nodes(leaves, num_microbatches)
    below = [leaves_below(node, num_microbatches) for node in nodes]
    assert set().union(*below) == leaves
    assert sum(map(len, below)) == len(leaves)
    assert [min(one) for one in below] == sorted(min(one) for one in below)
    for level, index in nodes:
        if level < root(num_microbatches).level:
            assert not leaves_below((level + 1, index // 2), num_microbatches) <= leaves


def test_an_aligned_run_holds_one_sum_a_level():
    for num_leaves in range(1, 65):
        assert most_sums_held(range(num_leaves), num_leaves) == num_leaves.bit_length()


def test_sums_held_where_leaves_do_not_merge():
    assert most_sums_held((), 8) == 0
    assert most_sums_held((0, 3, 6), 8) == 3
    assert most_sums_held((3, 4, 5), 8) == 3  # 3 waits; 4 and 5 merge
    assert most_sums_held((0, 1, 2), 8) == 2
    assert most_sums_held((6, 7), 8) == 2


@given(st.integers(1, 40).flatmap(lambda m: st.tuples(st.just(m), st.sets(st.integers(0, m - 1)))))
def test_what_is_held_at_the_end_are_the_aligned_nodes(case):
    num_microbatches, leaves = case
    assert len(aligned_nodes(leaves, num_microbatches)) <= most_sums_held(leaves, num_microbatches)


@given(st.lists(st.integers(1, 1024), min_size=1, max_size=60), st.integers(1, 12))
def test_shards_cut_on_block_borders_nearest_to_the_even_cut(blocks, num_ranks):
    bounds = shard_bounds(blocks, num_ranks)
    borders = [sum(blocks[:count]) for count in range(len(blocks) + 1)]
    assert len(bounds) == num_ranks + 1
    assert (bounds[0], bounds[-1]) == (0, sum(blocks))
    assert list(bounds) == sorted(bounds)
    assert set(bounds) <= set(borders)
    for rank in range(1, num_ranks):
        distance = [abs(border * num_ranks - sum(blocks) * rank) for border in borders]
        assert bounds[rank] == borders[distance.index(min(distance))]


def test_shards_of_nothing_are_empty():
    assert shard_bounds([], 3) == (0, 0, 0, 0)
