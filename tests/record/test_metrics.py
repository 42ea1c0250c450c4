"""Of each step one row counts: the last attempt's. The others stay, and are told apart."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elinvar.record.metrics import Evaluation, MetricsRow, effective, rewound


def row(attempt, step, loss=1.0, **more):
    return MetricsRow(
        attempt=attempt, step=step, loss=loss, denominator=8, tokens=8, grad_norm=0.5, lr=1e-3, **more
    )


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, 6)), unique=True), st.randoms(use_true_random=False)
)
def test_every_row_is_either_effective_or_rewound(places, random):
    rows = [row(attempt, step) for attempt, step in places]
    random.shuffle(rows)
    kept = effective(rows)
    assert [r.step for r in kept] == sorted({step for _, step in places})
    for r in kept:
        assert r.attempt == max(attempt for attempt, step in places if step == r.step)
    assert sorted((r.attempt, r.step) for r in kept + rewound(rows)) == sorted(places)


def test_of_two_rows_of_one_place_the_later_one_in_the_file_counts():
    assert effective([row(1, 1, 5.0), row(1, 1, 4.0)]) == [row(1, 1, 4.0)]


def test_a_skipped_step_has_nulls():
    skipped = row(1, 1, None, skipped=True)
    assert b'"loss":null' in msgspec.json.encode(skipped)
    assert msgspec.json.decode(msgspec.json.encode(skipped), type=MetricsRow) == skipped


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("field", ["loss", "grad_norm", "lr", "step_time_s", "tokens_per_s"])
def test_a_row_refuses_what_json_cannot_say(field, value):
    with pytest.raises(AssertionError, match="finite"):
        msgspec.structs.replace(row(1, 1), **{field: value})
    with pytest.raises(AssertionError, match="finite"):
        row(1, 1, times={"input": value})


def test_an_evaluation_refuses_what_json_cannot_say():
    with pytest.raises(AssertionError, match="finite"):
        Evaluation(loss=float("nan"), tokens=1, bytes=1, bits_per_byte=1.0)
