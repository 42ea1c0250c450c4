"""Time spans by phase: the one side effect that any layer may have.

Noun: `Spans`, which adds up the wall seconds of named phases between two `take` calls. It never
reads a device clock: a span of asynchronous device work ends when the host has issued it.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Spans:
    """Adds up wall time by phase name; `take` returns the sums in seconds and starts anew."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    @contextmanager
    def span(self, phase: str) -> Iterator[None]:
        """Count the wall time of the `with` body as `phase`."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[phase] = self._seconds.get(phase, 0.0) + time.perf_counter() - start

    def take(self) -> dict[str, float]:
        """Seconds by phase since the last `take`."""
        seconds, self._seconds = self._seconds, {}
        return seconds
