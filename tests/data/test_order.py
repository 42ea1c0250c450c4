"""The order: a bijection of every epoch, its inverse, and shuffling as good as a random permutation's."""

import pickle
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elinvar.data import order as order_module
from elinvar.data.order import Order, Permutation
from elinvar.errors import InvalidInput
from elinvar.identity import Digest

DATASET = Digest("ab" * 32)
OTHER = Digest("cd" * 32)

GOLDEN = [914, 945, 447, 587, 479]
GOLDEN_LARGE = [255365856598, 145962088402]


def all_of(permutation):
    return permutation.forward_all(np.arange(permutation.num_values, dtype=np.uint64))


@given(n=st.integers(1, 3000), seed=st.integers(0, 2**63 - 1))
def test_a_permutation_is_a_bijection_with_its_inverse(n, seed):
    permutation = Permutation(n, f"{seed}".encode())
    image = all_of(permutation).tolist()
    assert sorted(image) == list(range(n))
    for value in range(0, n, max(n // 50, 1)):
        assert permutation.forward(value) == image[value]
        assert permutation.backward(image[value]) == value


@pytest.mark.parametrize("n", [10**9 + 7, 2**32 + 1, 2**61 - 1, 2**62])
def test_large_permutations_are_instant_and_invert(n):
    start = time.process_time()
    permutation = Permutation(n, b"key")
    values = np.array([0, 1, 12345, n // 2, n - 1] * 10, dtype=np.uint64)
    image = permutation.forward_all(values).tolist()
    assert image == [permutation.forward(value) for value in values.tolist()]
    assert [permutation.backward(value) for value in image] == values.tolist()
    assert len(set(image)) == 5
    assert max(image) < n
    assert time.process_time() - start < 0.5


def test_the_bits_of_the_order_never_change():
    """Golden: a change here is another experiment for every run that exists."""
    assert [
        Order(DATASET, 1000, 1).sample(position).sample.index for position in (0, 1, 999, 1000, 12345)
    ] == GOLDEN
    assert Order(DATASET, 10**12, 3, held_out=7).indices(10**13, 10**13 + 2).tolist() == GOLDEN_LARGE


def test_small_permutations_are_all_about_equally_likely():
    """Every value lands on every place: chi-square over 6,000 keys against 5 standard deviations."""
    for n in (2, 3, 5, 8):
        counts = np.zeros((n, n))
        num_keys = 6000
        for key in range(num_keys):
            permutation = Permutation(n, f"small {key}".encode())
            for value in range(n):
                counts[value, permutation.forward(value)] += 1
        expected = num_keys / n
        deviation = np.abs(counts - expected) / np.sqrt(expected * (1 - 1 / n))
        assert deviation.max() < 5, (n, counts)


def variance_ratio(n, num_keys, make):
    """Variance of "how many of a batch of 256 come from source k" over the hypergeometric variance."""
    batch, sources = 256, 8
    ratios = []
    share = 1 / sources
    expected = batch * share * (1 - share) * (n - batch) / (n - 1)
    for key in range(num_keys):
        image = make(n, key)[: n // batch * batch]
        source = (image * sources // n).astype(np.int64).reshape(-1, batch)
        counts = np.stack([(source == number).sum(axis=1) for number in range(sources)])
        ratios.append(((counts - batch * share) ** 2).mean() / expected)
    return float(np.mean(ratios))


def low_bit_correlation(n, make):
    """The largest |correlation| of the output's low bit with an XOR of at most two input bits."""
    values = np.arange(n)[:: max(n // 65_536, 1)]
    low = 1.0 - 2.0 * (make(n, 0)[values] & 1)
    bits = [1.0 - 2.0 * ((values >> bit) & 1) for bit in range((n - 1).bit_length())]
    pairs = [bits[i] if i == j else bits[i] * bits[j] for i in range(len(bits)) for j in range(i + 1)]
    return max(abs(float((low * pair).mean())) for pair in pairs)


def ours(n, key):
    return all_of(Permutation(n, f"quality {key}".encode())).astype(np.int64)


@pytest.mark.parametrize(("n", "num_keys"), [(50_000, 32), (65_536, 32), (1_000_003, 2)])
def test_batches_are_as_mixed_as_those_of_a_random_permutation(n, num_keys):
    assert 0.97 <= variance_ratio(n, num_keys, ours) <= 1.03
    assert low_bit_correlation(n, ours) <= 5 / np.sqrt(min(n, 65_536))


def test_the_measures_of_shuffling_can_fail(monkeypatch):
    monkeypatch.setattr(order_module, "_mix_all", lambda values: values * np.uint64(0x9E3779B97F4A7C15))
    monkeypatch.setattr(order_module, "NUM_ROUNDS", 5)
    assert low_bit_correlation(65_536, ours) > 0.99
    assert not 0.97 <= variance_ratio(65_536, 8, ours) <= 1.03


def test_neighbouring_keys_and_epochs_share_nothing():
    """Epochs and seeds: no two orders agree in more places than chance has it; sums of keys do not cancel."""
    n = 2000
    images = {}
    for seed in range(4):
        order = Order(DATASET, n, seed)
        for epoch in range(4):
            images[seed, epoch] = order.indices(epoch * n, (epoch + 1) * n)
    images["other data"] = Order(OTHER, n, 0).indices(0, n)
    values = list(images.values())
    for i, a in enumerate(values):
        for b in values[:i]:
            assert np.count_nonzero(a == b) < 12
            assert np.count_nonzero(a[1:] == b[:-1]) < 12


@given(
    n=st.integers(1, 40),
    share=st.integers(0, 39),
    seed=st.integers(0, 9),
    start=st.integers(0, 200),
    kind=st.sampled_from(["shuffle", "sequential"]),
)
def test_positions_name_samples_and_back(n, share, seed, start, kind):
    order = Order(DATASET, n, seed, kind, held_out=share % n)
    stop = start + 70
    indices = order.indices(start, stop).tolist()
    occurrences = order.occurrences(start, stop)
    assert [occurrence.sample.index for occurrence in occurrences] == indices
    assert [order.sample(position) for position in range(start, stop)] == list(occurrences)
    for occurrence in occurrences:
        assert occurrence.sample.dataset == DATASET
        assert occurrence.epoch == occurrence.position // order.epoch_length
        assert order.position(occurrence.sample.index, occurrence.epoch) == occurrence.position
        assert not order.split.is_held_out(occurrence.sample.index)


@given(n=st.integers(2, 50), seed=st.integers(0, 5))
def test_an_epoch_visits_every_training_sample_once(n, seed):
    order = Order(DATASET, n, seed, held_out=1)
    for epoch in (0, 3):
        visited = order.indices(epoch * order.epoch_length, (epoch + 1) * order.epoch_length).tolist()
        assert sorted(visited) == sorted(set(range(n)) - set(order.split.held_out_samples))


def test_sequential_is_as_stored():
    order = Order(DATASET, 6, 9, "sequential", held_out=1)
    assert order.indices(0, 12).tolist() == [0, 1, 2, 4, 5, 0, 1, 2, 4, 5, 0, 1]


def test_samples_that_no_epoch_visits_are_refused():
    order = Order(DATASET, 10, 0, held_out=1)
    with pytest.raises(InvalidInput, match="no sample 10"):
        order.position(10, 0)
    with pytest.raises(InvalidInput, match="sample 5 is held out"):
        order.position(5, 0)


def test_an_order_travels_between_processes():
    order = Order(DATASET, 1000, 5, held_out=10)
    assert pickle.loads(pickle.dumps(order)).occurrences(950, 1100) == order.occurrences(950, 1100)
