"""Held-out samples: evenly spread, disjoint from training, numbered without a table."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from elinvar.data.split import Split


@st.composite
def splits(draw):
    num_samples = draw(st.integers(1, 300))
    return Split(num_samples, draw(st.integers(0, num_samples - 1)))


@given(split=splits())
def test_training_and_held_out_samples_are_a_partition(split):
    training = split.sample_of(np.arange(split.num_training, dtype=np.uint64)).tolist()
    assert training == sorted(set(range(split.num_samples)) - set(split.held_out_samples))
    assert len(set(split.held_out_samples)) == split.held_out
    assert [split.training_of(sample) for sample in training] == list(range(split.num_training))
    held_out = set(split.held_out_samples)
    assert [split.is_held_out(sample) for sample in range(split.num_samples)] == [
        sample in held_out for sample in range(split.num_samples)
    ]


@given(split=splits())
def test_every_stretch_holds_one_out(split):
    for number, sample in enumerate(split.held_out_samples):
        assert number * split.num_samples // split.held_out <= sample
        assert sample * split.held_out < (number + 1) * split.num_samples


def test_no_array_of_the_samples_is_made():
    split = Split(10**15, 3)
    assert split.held_out_samples == (10**15 // 6, 10**15 // 2, 10**15 * 5 // 6)
    last = split.sample_of(np.array([0, split.num_training - 1], dtype=np.uint64)).tolist()
    assert last == [0, 10**15 - 1]
    assert split.training_of(10**15 - 1) == 10**15 - 4
