"""Asking a run to stop: at the end of a step that all ranks agree on, never in the middle of one.

Nouns: `Request` (none, stop, interrupt) and its sources. A source only answers what this process
has heard; the ranks exchange the answers with each step's totals and obey the strongest.
"""

import os
import signal
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from types import FrameType
from typing import Protocol

from torch.distributed import Store

from elinvar.errors import EXIT_INTERRUPTED
from elinvar.record.manifest import list_generations
from elinvar.run.early import STOPS, hangs_on, was_stopped
from elinvar.run.progress import say

STOP_KEY = "elinvar/stop"

Handler = Callable[[int, FrameType | None], None]


class Request(IntEnum):
    """What was asked for; the larger one wins."""

    NONE = 0
    STOP = 1  # SIGTERM: save and exit 75
    INTERRUPT = 2  # Ctrl-C: save and exit 130


class Source(Protocol):
    """Where a rank hears of requests."""

    def heard(self) -> Request:
        """The strongest request heard by this rank so far."""


class StoreSource:
    """A rank below a launching parent: rank 0 asks the parent's store, the others hear nothing."""

    def __init__(self, store: Store, rank: int) -> None:
        self._store = store
        self._rank = rank

    def heard(self) -> Request:
        """See `Source.heard`; one small request to the store on rank 0."""
        if self._rank != 0 or not self._store.check([STOP_KEY]):
            return Request.NONE
        return Request(int(self._store.get(STOP_KEY)))


class SignalSource:
    """A process that is a rank itself: SIGTERM asks to stop, SIGINT interrupts, a second SIGINT quits at once.

    Only a rank that knows the `generations` speaks.
    """

    def __init__(self, generations: Path | None) -> None:
        self._heard = Request.STOP if was_stopped() else Request.NONE
        self._generations = generations
        hear(self._on_terminate, self._on_interrupt)

    def heard(self) -> Request:
        """See `Source.heard`."""
        return self._heard

    def _on_terminate(self, _number: int, _frame: FrameType | None) -> None:
        self._heard = max(self._heard, Request.STOP)

    def _on_interrupt(self, _number: int, _frame: FrameType | None) -> None:
        if self._heard == Request.INTERRUPT:
            if self._generations is not None:
                step = saved_step(self._generations)
                say(f"\n{lost(step)}\nresumable from {step}")
            os._exit(EXIT_INTERRUPTED)
        self._heard = Request.INTERRUPT
        if self._generations is not None:
            say(asked())


def hear(on_terminate: Handler, on_interrupt: Handler) -> None:
    """Set the handlers of this process; a hang-up that the caller ignores (`nohup`) stays ignored."""
    signal.signal(signal.SIGINT, on_interrupt)
    for number in STOPS:
        if not hangs_on(number):
            signal.signal(number, on_terminate)


def asked() -> str:
    """What is said at the first Ctrl-C."""
    return "\ninterrupted: saving at the end of this step (Ctrl-C again quits at once)"


def lost(step: int) -> str:
    """What is said at the second Ctrl-C, where `step` is that of the newest generation (0: none)."""
    return f"quit without saving: every step after {step} is lost"


def saved_step(generations: Path) -> int:
    """The step of the newest generation in that folder; 0 where there is none."""
    found = list_generations(generations)
    return found[-1].step if found else 0
