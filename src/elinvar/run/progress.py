"""What a person sees while a run goes on: one redrawn line on a terminal, else a plain line every 10 s.

Noun: `Progress`. It writes to stderr, shows the step that was really reached (a resumed run starts
where it resumed), and estimates from the rate of this attempt alone.
"""

import os
import sys
import time
from typing import TextIO

PLAIN_EVERY_S = 10.0


class Progress:
    """Shows steps from `first` (exclusive) to `last`; silent when `quiet`."""

    def __init__(self, first: int, last: int, *, quiet: bool = False, stream: TextIO | None = None) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self._redraws = self._stream.isatty() and os.environ.get("TERM") != "dumb"
        self._first, self._last = first, last
        self._quiet = quiet
        self._began = time.monotonic()
        self._shown = self._began
        self._width = 0
        self._evaluation: tuple[float, int] | None = None
        self._skipped = 0

    def step(
        self,
        step: int,
        *,
        loss: float | None,
        evaluation: float | None,
        grad_norm: float | None,
        lr: float,
        tokens_per_s: float,
        waiting: float,
        skipped: bool,
    ) -> None:
        """Show one finished step. `waiting` is the share of its time spent waiting for input.

        How many steps were skipped stays in the line: a plain line every 10 s would miss them.
        """
        self._skipped += skipped
        if evaluation is not None:
            self._evaluation = (evaluation, step)
        now = time.monotonic()
        if self._quiet or (not self._redraws and now - self._shown < PLAIN_EVERY_S and step < self._last):
            return
        done = step - self._first
        remaining = (now - self._began) / done * (self._last - step) if done else 0.0
        parts = [
            f"step {step}/{self._last}",
            f"{100 * step / self._last:3.0f}%",
            f"loss {loss:.4f}" if loss is not None else "loss not finite",
            f"{self._skipped} skipped" if self._skipped else "",
            f"held-out {self._evaluation[0]:.4f} at {self._evaluation[1]}" if self._evaluation else "",
            f"grad {grad_norm:.3f}" if grad_norm is not None else "",
            f"lr {lr:.2e}",
            f"{tokens_per_s / 1000:.1f}k tok/s",
            f"wait {100 * waiting:.0f}%",
            f"eta {_clock(remaining)}",
        ]
        self._write("  ".join(part for part in parts if part))
        self._shown = now

    def say(self, text: str) -> None:
        """A line that stays."""
        if self._quiet:
            return
        if self._redraws and self._width:
            self._stream.write("\r" + " " * self._width + "\r")
            self._width = 0
        self._stream.write(text + "\n")
        self._stream.flush()

    def close(self) -> None:
        """Leave the last progress line standing."""
        if self._redraws and self._width and not self._quiet:
            self._stream.write("\n")
            self._stream.flush()

    def _write(self, line: str) -> None:
        if self._redraws:
            columns = max(20, _columns(self._stream) - 1)
            line = line[:columns]
            self._stream.write("\r" + line.ljust(min(self._width, columns)))
            self._width = len(line)
        else:
            self._stream.write(line + "\n")
        self._stream.flush()


def _columns(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
