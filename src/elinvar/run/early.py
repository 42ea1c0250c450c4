"""SIGTERM before a run has begun: end at once, with the code of a stop. Imports no PyTorch."""

import signal
from types import FrameType

from elinvar.errors import EXIT_STOPPED, ElinvarError


class StoppedEarly(ElinvarError):
    """SIGTERM before the first step: nothing was computed, nothing is lost."""

    exit_code = EXIT_STOPPED


def stop_before_start() -> None:
    """Until a source or a launching parent listens, SIGTERM ends the command with exit code 75."""

    def on_terminate(_number: int, _frame: FrameType | None) -> None:
        raise StoppedEarly("stopped before the first step; nothing is lost, start it again")

    signal.signal(signal.SIGTERM, on_terminate)
