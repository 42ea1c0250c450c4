"""Attempts: starts and ends find each other, and one without an end is not called anything else."""

import json

import pytest

from elinvar.errors import InvalidInput
from elinvar.record.attempt import AttemptEnd, AttemptStart, kept_until, next_attempt, read_attempts
from elinvar.record.journal import Journal


def start(attempt, from_step=0, **more):
    return AttemptStart(
        attempt=attempt, time_s=1.5, from_step=from_step, execution={"ranks": 2}, machine={}, fingerprint={},
        versions={"torch": "2"}, **more,
    )  # fmt: skip


def end(attempt, to_step, reason="stopped"):
    return AttemptEnd(attempt=attempt, time_s=2.5, to_step=to_step, reason=reason)


def write(path, *rows):
    with Journal(path) as journal:
        for row in rows:
            journal.append(row)


def test_starts_and_ends_are_merged_by_number(tmp_path):
    path = tmp_path / "attempts.jsonl"
    write(path, start(1), start(2, 5), end(2, 9), start(3, 9))
    attempts = read_attempts(path)
    assert [(a.attempt, a.from_step, a.reason) for a in attempts] == [
        (1, 0, "killed or running"),
        (2, 5, "stopped"),
        (3, 9, "killed or running"),
    ]
    assert next_attempt(path) == 4


def test_a_lost_start_does_not_free_its_number(tmp_path):
    path = tmp_path / "attempts.jsonl"
    assert (read_attempts(path), next_attempt(path)) == ([], 1)
    write(path, start(1), end(7, 9))
    assert len(read_attempts(path)) == 1
    assert next_attempt(path) == 8


def test_unknown_keys_are_ignored_and_a_newer_schema_is_refused(tmp_path):
    path = tmp_path / "attempts.jsonl"
    write(path, start(1))
    row = json.loads(path.read_text())
    path.write_text(json.dumps({**row, "weather": "fine"}) + "\n")
    assert read_attempts(path)[0].start == start(1)
    path.write_text(json.dumps({**row, "schema": 2}) + "\n")
    with pytest.raises(InvalidInput, match="schema 2, newer than 1"):
        read_attempts(path)


def test_rows_past_a_restored_state_are_left_behind(tmp_path):
    path = tmp_path / "attempts.jsonl"
    write(path, start(1), start(2, 40), start(3, 20), start(4, 60))
    assert kept_until(read_attempts(path)) == {1: 20, 2: 20, 3: 60, 4: None}


def test_the_line_goes_through_the_attempt_that_wrote_the_restored_generation(tmp_path):
    # Attempt 2 went back to step 40 and was killed; attempt 3 went on from attempt 1's step 60.
    path = tmp_path / "attempts.jsonl"
    write(path, start(1), start(2, 40, parent_generation="g40"), start(3, 60, parent_generation="g60"))
    assert kept_until(read_attempts(path), {"g40": 1, "g60": 1}) == {1: 60, 2: 0, 3: None}
    assert kept_until([]) == {}
