"""Thinning draws fewer points and loses no peak, no gap and no end."""

import random

from hypothesis import given
from hypothesis import strategies as st

from elinvar.report.series import LIMIT, thinned

values = st.none() | st.floats(-1e6, 1e6, allow_nan=False)


@given(st.lists(values, max_size=300), st.integers(5, 40))
def test_a_thinned_curve_is_a_subset_with_the_same_extremes(curve, limit):
    kept = thinned(curve, limit)
    assert len(kept) <= limit
    assert kept == sorted(set(kept))
    assert all(0 <= index < len(curve) for index in kept)
    if len(curve) <= limit:
        assert kept == list(range(len(curve)))
    if not curve:
        return
    assert {0, len(curve) - 1} <= set(kept)
    shown = [curve[index] for index in kept]
    present = [value for value in curve if value is not None]
    if present:
        assert max(v for v in shown if v is not None) == max(present)
        assert min(v for v in shown if v is not None) == min(present)
    assert (None in shown) == (None in curve)


def test_a_spike_of_one_step_in_a_hundred_thousand_is_drawn_at_its_step():
    for place in (1, 7_776, 99_998):
        source = random.Random(place)
        curve = [2.0 + source.random() * 0.1 for _ in range(100_000)]
        curve[place] = 20.123456789
        kept = thinned(curve)
        assert len(kept) <= LIMIT
        assert place in kept


def test_a_gap_of_one_step_is_drawn_at_its_step():
    curve = [1.0] * 50_000
    curve[31_415] = None
    assert 31_415 in thinned(curve)


def test_each_bucket_keeps_its_own_extremes():
    # A reference in other words: whatever run of indices is looked at, its greatest value is near a kept one.
    source = random.Random(0)
    curve = [source.random() for _ in range(9_000)]
    kept = thinned(curve, 302)
    for start in range(1, 8_900, 90):
        window = range(start, start + 180)
        best = max(curve[index] for index in window if index < 8_999)
        assert max(curve[index] for index in kept if start - 90 <= index < start + 270) >= best
