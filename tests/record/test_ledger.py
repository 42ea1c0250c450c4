"""The audit finds every position that was lost, taken twice or taken from elsewhere."""

import struct
from collections import Counter

from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from elinvar.record.ledger import LedgerRow, Span, audit, effective, ids_digest


def row(attempt, step, per_step=4, position=None, count=None, ids=None):
    position = (step - 1) * per_step if position is None else position
    count = per_step if count is None else count
    ids = range(position, position + count) if ids is None else ids
    return LedgerRow(
        attempt=attempt, step=step, position=position, count=count, epoch=0, ids_digest=ids_digest(ids)
    )


def positions(spans):
    return [p for span in spans for p in range(span.start, span.stop)]


def test_ids_digest_is_blake3_of_little_endian_words():
    ids = [0, 1, 258, 2**64 - 1]
    assert ids_digest(ids) == blake3(struct.pack("<4Q", *ids)).hexdigest()
    assert ids_digest([]) == blake3(b"").hexdigest()
    assert ids_digest([1, 0]) != ids_digest([0, 1])


def test_a_run_killed_and_resumed_covers_everything_once():
    rows = [row(1, s) for s in (1, 2, 3, 4, 5)] + [row(2, s) for s in (4, 5, 6)] + [row(3, s) for s in (7, 8)]
    found = audit(rows, 8, 4, range)
    assert found.ok
    assert (found.num_steps, found.num_sequences) == (8, 32)
    assert [r.attempt for r in effective(rows)] == [1, 1, 1, 2, 2, 2, 3, 3]


def test_nothing_consumed():
    assert audit([], 0, 4).ok
    found = audit([], 2, 4)
    assert (found.skipped, found.num_sequences, found.ok) == ([Span(0, 8)], 0, False)


def test_a_lost_step_a_repeated_slice_and_a_foreign_one():
    rows = [row(1, 1), row(1, 3, position=6), row(1, 4, position=99)]
    found = audit(rows, 4, 4)
    assert found.skipped == [Span(4, 6), Span(10, 16)]
    assert found.beyond == [Span(99, 103)]
    assert audit([row(1, 1), row(1, 2, position=2)], 2, 4).repeated == [Span(2, 4)]


def test_other_samples_at_the_right_positions_are_found():
    rows = [row(1, 1), row(1, 2, ids=[4, 5, 7, 6])]
    assert audit(rows, 2, 4).ok
    assert audit(rows, 2, 4, range).wrong_steps == [2]


def test_rows_past_the_asked_step_do_not_matter():
    assert audit([row(1, 1), row(1, 2), row(1, 3, position=0)], 2, 4).ok


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 9)), max_size=6),
    st.integers(1, 5),
)
def test_against_counting_each_position(spans, per_step):
    until = max(1, len(spans))
    rows = [row(1, step, position=p, count=n) for step, (p, n) in enumerate(spans, 1)]
    counts = Counter(p for position, n in spans for p in range(position, position + n))
    end = until * per_step
    found = audit(rows, until, per_step)
    assert positions(found.skipped) == [p for p in range(end) if counts[p] == 0]
    assert positions(found.repeated) == sorted(p for p, n in counts.items() if n > 1)
    assert positions(found.beyond) == sorted(p for p in counts if p >= end)
    assert found.num_sequences == counts.total()
    assert found.ok == (counts == Counter(range(end)))
