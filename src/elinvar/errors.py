"""Every error that Elinvar raises on purpose, in one tree.

    ElinvarError
    ├── InvalidInput        exit 2   wrong on every machine: a key, a value, a file, an existing folder
    ├── DoesNotFit          exit 3   valid, but not on this machine or budget
    ├── Mismatch            exit 4   a check or a verification found two things that must be equal, and are not
    └── RunFailed           exit 1   the run could not go on; says from which step it can be resumed
        └── StorageFailed            the disk refused a write (full, unwritable); nothing half written is visible

A message says what happened, the value got, what is allowed, and the next command. `lines` are
printed below it, indented. These are user errors; for our own invariants we use `assert`.
"""

from collections.abc import Sequence

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_INVALID = 2
EXIT_DOES_NOT_FIT = 3
EXIT_MISMATCH = 4
EXIT_STOPPED = 75
EXIT_INTERRUPTED = 130


class ElinvarError(Exception):
    """An error whose text is written for the user; the CLI prints it without a traceback."""

    exit_code = EXIT_FAILED

    def __init__(self, message: str, lines: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.lines = tuple(lines)

    def __str__(self) -> str:
        return "\n".join([self.message, *(f"  {line}" for line in self.lines)])

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.message, self.lines))


class InvalidInput(ElinvarError):
    """The input is wrong whatever the machine (exit 2)."""

    exit_code = EXIT_INVALID


class DoesNotFit(ElinvarError):
    """The input is valid, but this machine or budget cannot carry it (exit 3)."""

    exit_code = EXIT_DOES_NOT_FIT


class Mismatch(ElinvarError):
    """A check compared two things that must be equal, and they differ (exit 4)."""

    exit_code = EXIT_MISMATCH


class RunFailed(ElinvarError):
    """The run could not go on (exit 1); its last line says from where it can be resumed."""


class StorageFailed(RunFailed):
    """A write did not reach the disk; what was committed before is untouched."""
