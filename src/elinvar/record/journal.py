"""Append-only files of one JSON object a line: what happened, in the order in which it happened.

Nouns: `Journal` (the one writer of a file) and its rows. A row is one `write` to a descriptor in
append mode, so that a killed writer leaves whole rows and at most one torn last line. The next
opening closes that line with a newline; readers skip lines that do not parse, and count them. A
journal is never rewritten, shortened or sorted.
"""

import os
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, TypeVar

import msgspec

from elinvar.errors import StorageFailed
from elinvar.record.durable import read_bytes, sync_directory, write_failed

Row = TypeVar("Row")

_LOOK_BACK_BYTES = 1 << 16


class Journal(Generic[Row]):
    """The writer of one journal; opening it creates the file and closes a torn last line.

    `torn_bytes` is the length of the unterminated last line that was found, 0 if there was none:
    the caller puts it into an event. One process at a time writes (the folder's lock sees to it).
    Every failed write raises StorageFailed naming the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.torn_bytes = 0
        # True after a write of ours that came out short: the next row then starts on a line of its own.
        self._half_row = False
        try:
            path.parent.mkdir(exist_ok=True)
            is_new = not path.exists()
            self._fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
            if is_new:
                sync_directory(path.parent)
        except OSError as error:
            raise write_failed(path, error) from error
        try:
            self.torn_bytes = _torn_bytes(self._fd)
            if self.torn_bytes:
                self._write(b"\n")
        except OSError as error:
            self.close()
            raise write_failed(path, error) from error
        except StorageFailed:
            self.close()
            raise

    def append(self, row: Row) -> None:
        """Add one row; it survives the end of this process, and a power cut after `sync`."""
        data = msgspec.json.encode(row) + b"\n"
        self._write(b"\n" + data if self._half_row else data)

    def sync(self) -> None:
        """Make all rows appended so far durable."""
        try:
            os.fsync(self._fd)
        except OSError as error:
            raise write_failed(self.path, error) from error

    def close(self) -> None:
        """Give the descriptor back; nothing is flushed, since nothing is buffered."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> "Journal[Row]":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _write(self, data: bytes) -> None:
        try:
            written = os.write(self._fd, data)
        except OSError as error:
            raise write_failed(self.path, error) from error
        self._half_row = written < len(data)
        if self._half_row:
            # A regular file takes less than asked only when its file system is full or over quota.
            raise StorageFailed(
                f"cannot write {self.path}: only {written} of {len(data)} bytes of a row were taken",
                [f"free space on the file system of {self.path.parent}, then continue the run"],
            )


def _torn_bytes(fd: int) -> int:
    """How many bytes follow the last newline of the open file; 0 for an empty or well-ended one."""
    size = os.fstat(fd).st_size
    end = size
    while end > 0:
        start = max(0, end - _LOOK_BACK_BYTES)
        newline = os.pread(fd, end - start, start).rfind(b"\n")
        if newline >= 0:
            return size - (start + newline + 1)
        end = start
    return size


def read_journal(path: Path, kind: type[Row] | Any) -> tuple[list[Row], int]:
    """All rows of the journal at `path` that parse as `kind`, in file order, and how many lines do not.

    A missing file has no rows. A last line without its newline counts as a row when it is whole:
    no proper beginning of a JSON object is one. Blank lines are neither rows nor unreadable.
    Raises DoesNotFit where the file may not be read.
    """
    if not path.exists():
        return [], 0
    decoder: msgspec.json.Decoder[Row] = msgspec.json.Decoder(kind)
    rows: list[Row] = []
    num_unreadable = 0
    for line in read_bytes(path).split(b"\n"):
        if not line.strip():
            continue
        try:
            rows.append(decoder.decode(line))
        except (msgspec.DecodeError, UnicodeDecodeError):
            num_unreadable += 1
    return rows, num_unreadable
