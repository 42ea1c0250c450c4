"""What a person sees while a run goes on: one redrawn line on a terminal, else a plain line every 10 s.

Nouns: `Progress`, and `say`, through which a run speaks to people. Nobody has to listen: where stderr
is closed, full or a pipe without a reader, the run goes on in silence. `Progress` writes to stderr, shows the step that was really reached (a resumed run starts
where it resumed), and estimates from the rate of this attempt alone.
"""

import os
import sys
import time
from typing import TextIO

PLAIN_EVERY_S = 10.0


def say(text: str) -> None:
    """Write the line(s) `text` to stderr, or nothing where stderr takes nothing; never raises for it."""
    put(sys.stderr, f"{text}\n")


def put(stream: TextIO | None, text: str) -> None:
    """Write `text` to `stream` at once. A stream that refuses it is pointed nowhere, for good."""
    if stream is None:
        return
    try:
        stream.write(text)
        stream.flush()
    except BlockingIOError:
        pass  # a slow reader: what is buffered follows with the next line
    except RuntimeError:
        pass  # a signal handler inside another write to the same stream
    except (OSError, ValueError):
        silence(stream)


def silence(stream: TextIO | None) -> None:
    """Point `stream` nowhere, or its flush at exit would fail once more and change the exit code."""
    if stream is None:
        return
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
    except (OSError, ValueError):
        pass  # no file behind it, or closed: nothing is flushed at exit


class Progress:
    """Shows steps from `first` (exclusive) to `last`; silent when `quiet`."""

    def __init__(self, first: int, last: int, *, quiet: bool = False, stream: TextIO | None = None) -> None:
        self._stream: TextIO | None = stream if stream is not None else sys.stderr
        self._redraws = _is_terminal(self._stream) and os.environ.get("TERM") != "dumb"
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
            put(self._stream, "\r" + " " * self._width + "\r")
            self._width = 0
        put(self._stream, text + "\n")

    def close(self) -> None:
        """Leave the last progress line standing."""
        if self._redraws and self._width and not self._quiet:
            put(self._stream, "\n")

    def _write(self, line: str) -> None:
        if self._redraws:
            columns = max(20, _columns(self._stream) - 1)
            line = line[:columns]
            put(self._stream, "\r" + line.ljust(min(self._width, columns)))
            self._width = len(line)
        else:
            put(self._stream, line + "\n")


def _is_terminal(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # closed
        return False


def _columns(stream: TextIO | None) -> int:
    if stream is None:
        return 80
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
