"""Signals while nothing computes: before the first step, after the last, and in commands that save nothing.

Nouns: `StoppedEarly` and `Quit`, the two ends that save nothing because somebody asked for it.
Imports no PyTorch, so that it can listen first.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from elinvar.errors import EXIT_INTERRUPTED, EXIT_STOPPED, ElinvarError

STOPS = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""Signals that ask for a stop: a scheduler's, a closed terminal's, a person's."""

_stopped = False


class StoppedEarly(ElinvarError):
    """SIGTERM where there is nothing to save: before the first step, or in a rerun for comparison."""

    exit_code = EXIT_STOPPED


class Quit(ElinvarError):
    """Ctrl-C that ends the ranks without saving: a second one, or where there is nothing to save."""

    exit_code = EXIT_INTERRUPTED


@contextmanager
def stoppable(message: str) -> Iterator[None]:
    """Until a source or a launching parent listens, a stop raises StoppedEarly with `message`.

    The caller's handlers are there again afterwards.
    """
    global _stopped
    _stopped = False
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, *STOPS)}

    def on_terminate(_number: int, _frame: FrameType | None) -> None:
        global _stopped
        _stopped = True
        raise StoppedEarly(message)

    for number in STOPS:
        if not hangs_on(number):
            signal.signal(number, on_terminate)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def was_stopped() -> bool:
    """Whether a stop was asked for already: an error raised inside somebody's import may be swallowed there."""
    return _stopped


def finish_undisturbed() -> None:
    """The last rows and the report take a moment, and the end of the run is decided: hear nothing more."""
    for number in (signal.SIGINT, *STOPS):
        signal.signal(number, signal.SIG_IGN)


def hangs_on(number: int) -> bool:
    """Whether `number` is a hang-up that the caller ignores (`nohup`): it stays ignored."""
    return number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN
