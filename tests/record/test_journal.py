"""Journals: whole rows survive anything that can happen to a writer, and the damage is counted."""

import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elinvar.errors import StorageFailed
from elinvar.record.journal import Journal, read_journal


class Line(msgspec.Struct, frozen=True):
    number: int
    text: str = ""


lines = st.builds(Line, st.integers(-(2**63), 2**63 - 1), st.text(max_size=40))


def write(path, rows):
    with Journal(path) as journal:
        for row in rows:
            journal.append(row)
        journal.sync()
        return journal.torn_bytes


@settings(max_examples=60, deadline=None)
@given(st.lists(lines, max_size=6), st.lists(lines, max_size=3), st.data())
def test_truncated_at_any_byte_whole_rows_are_read_and_appending_goes_on(before, after, data):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.jsonl"
        write(path, before)
        whole = path.read_bytes()
        cut = data.draw(st.integers(0, len(whole)))
        os.truncate(path, cut)

        # The reference: rows whose text (the newline aside) lies before the cut.
        ends = [position for position, byte in enumerate(whole) if byte == 0x0A]
        survivors = before[: sum(end <= cut for end in ends)]
        last_newline = whole.rfind(b"\n", 0, cut)
        torn = cut - last_newline - 1
        is_half = torn > 0 and cut not in ends

        assert read_journal(path, Line) == (survivors, int(is_half))
        assert write(path, after) == torn
        assert read_journal(path, Line) == (survivors + after, int(is_half))
        assert write(path, []) == 0


def test_zeroed_and_foreign_bytes_are_counted_and_skipped(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(
        b'\x00\x00\x00\n{"number":1}\n\xff\xfe\n[]\n{"number":"2"}\n\n{"number":3,"newer":[1]}\n\x00\x00'
    )
    assert read_journal(path, Line) == ([Line(1), Line(3)], 5)


def test_text_with_newlines_stays_one_line(tmp_path):
    path = tmp_path / "rows.jsonl"
    row = Line(1, "a\nb\r\n\u2028\x85c")
    write(path, [row])
    assert path.read_bytes().count(b"\n") == 1
    assert read_journal(path, Line) == ([row], 0)


def test_a_long_torn_line_is_measured_beyond_one_block(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"number":1}\n' + b"x" * 200_001)
    assert write(path, [Line(2)]) == 200_001
    assert read_journal(path, Line) == ([Line(1), Line(2)], 1)


def test_each_row_is_one_write_in_append_mode(tmp_path, monkeypatch):
    writes = []
    real = os.write
    path = tmp_path / "rows.jsonl"
    with Journal(path) as journal, Journal(path) as other:
        monkeypatch.setattr(os, "write", lambda fd, data: (writes.append(bytes(data)), real(fd, data))[1])
        journal.append(Line(1))
        other.append(Line(2))
        journal.append(Line(3))
    assert writes == [b'{"number":1,"text":""}\n', b'{"number":2,"text":""}\n', b'{"number":3,"text":""}\n']
    assert read_journal(path, Line) == ([Line(1), Line(2), Line(3)], 0)


def test_a_missing_journal_has_no_rows(tmp_path):
    assert read_journal(tmp_path / "none.jsonl", Line) == ([], 0)


def test_a_full_disk_is_a_storage_failure_that_names_the_file():
    # /dev/full takes no byte and says ENOSPC: a real full disk.
    with (
        Journal(Path("/dev/full")) as journal,
        pytest.raises(StorageFailed, match="/dev/full: No space left"),
    ):
        journal.append(Line(1))


def test_a_folder_in_place_of_the_journal_is_a_storage_failure(tmp_path):
    (tmp_path / "rows.jsonl").mkdir()
    with pytest.raises(StorageFailed, match=r"rows\.jsonl: Is a directory"):
        Journal(tmp_path / "rows.jsonl")


def test_a_short_write_is_said_and_the_next_row_stands_alone(tmp_path):
    # The kernel itself writes less than asked: the file may not grow beyond 40 bytes.
    path = tmp_path / "rows.jsonl"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with Journal(path) as journal:
        journal.append(Line(1))
        resource.setrlimit(resource.RLIMIT_FSIZE, (40, hard))
        try:
            with pytest.raises(StorageFailed, match=r"rows\.jsonl: only 17 of 23 bytes"):
                journal.append(Line(2))
            with pytest.raises(StorageFailed, match="File too large"):
                journal.append(Line(3))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert read_journal(path, Line) == ([Line(1)], 1)
        journal.append(Line(4))
    assert read_journal(path, Line) == ([Line(1), Line(4)], 1)


WRITER = """
import sys
from pathlib import Path
import msgspec
from elinvar.record.journal import Journal
class Line(msgspec.Struct):
    number: int
    text: str
journal = Journal(Path(sys.argv[1]))
number = 0
while True:
    journal.append(Line(number, "x" * (number % 3000)))
    number += 1
"""


@pytest.mark.drill
def test_a_killed_writer_leaves_whole_rows_in_order(tmp_path):
    path = tmp_path / "rows.jsonl"
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(path)])
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and not (path.exists() and path.stat().st_size > 200_000):
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    rows, num_unreadable = read_journal(path, Line)
    assert [row.number for row in rows] == list(range(len(rows)))
    assert len(rows) > 50
    assert num_unreadable <= 1
    assert (write(path, [Line(-1)]) > 0) == (num_unreadable == 1)
    assert read_journal(path, Line) == ([*rows, Line(-1)], num_unreadable)
