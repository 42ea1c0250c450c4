"""What a person sees: one redrawn line on a terminal, a plain line every ten seconds elsewhere."""

import io
import os
import pty
import re
import termios

import pytest

from elinvar.run import progress as module
from elinvar.run.progress import PLAIN_EVERY_S, Progress

STEP = {
    "loss": 1.25,
    "evaluation": None,
    "grad_norm": 0.5,
    "lr": 1e-3,
    "tokens_per_s": 1500.0,
    "waiting": 0.02,
    "skipped": False,
}


class Clock:
    """Time that passes when a test says so."""

    def __init__(self, monkeypatch):
        self.now = 1000.0
        monkeypatch.setattr(module.time, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


def terminal(columns):
    """(stream, read): a terminal of that width, and everything that was written to it so far."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, columns))
    stream = os.fdopen(theirs, "w", encoding="utf-8")
    os.set_blocking(ours, False)

    def read():
        stream.flush()
        try:
            return os.read(ours, 1 << 20).decode()
        except BlockingIOError:
            return ""

    return stream, read


def test_elsewhere_there_is_at_most_a_line_in_ten_seconds_and_one_at_the_end(clock):
    stream = io.StringIO()
    shown = Progress(100, 200, stream=stream)
    for step in range(101, 201):
        clock.now += 0.73
        shown.step(step, **STEP)
    shown.close()
    lines = stream.getvalue().splitlines()
    assert len(lines) == int(100 * 0.73 / PLAIN_EVERY_S) + 1
    assert lines[0].startswith(
        "step 114/200   57%  loss 1.2500  grad 0.500  lr 1.00e-03  1.5k tok/s  wait 2%  eta "
    )
    assert lines[-1].startswith("step 200/200  100%")
    assert "\x1b" not in stream.getvalue()
    assert "\r" not in stream.getvalue()


def test_the_time_left_is_that_of_this_attempt(clock):
    stream = io.StringIO()
    shown = Progress(9000, 10000, stream=stream)
    clock.now += 100
    shown.step(9100, **STEP)  # a hundred steps in 100 s: 900 more
    assert stream.getvalue().rstrip().endswith("eta 15:00")
    clock.now += 3500
    shown.step(9200, **STEP)
    assert stream.getvalue().rstrip().endswith("eta 4:00:00")


def test_skipped_steps_between_the_lines_and_the_last_held_out_loss_are_shown(clock):
    stream = io.StringIO()
    shown = Progress(0, 9, stream=stream)
    shown.step(1, **{**STEP, "evaluation": 1.5})
    shown.step(2, **{**STEP, "skipped": True})
    shown.step(3, **{**STEP, "loss": None, "grad_norm": None, "skipped": True})
    clock.now += PLAIN_EVERY_S
    shown.step(4, **STEP)
    clock.now += PLAIN_EVERY_S
    shown.step(5, **{**STEP, "loss": None, "grad_norm": None, "skipped": True})
    first, second = stream.getvalue().splitlines()
    assert "loss 1.2500  2 skipped  held-out 1.5000 at 1  grad 0.500" in first
    assert "loss not finite  3 skipped  held-out 1.5000 at 1  lr" in second


@pytest.mark.parametrize("columns", [40, 200])
def test_on_a_terminal_one_line_is_redrawn_and_fits(clock, monkeypatch, columns):
    monkeypatch.setenv("TERM", "xterm")
    stream, read = terminal(columns)
    shown = Progress(7, 9, stream=stream)
    clock.now += 1
    shown.step(8, **STEP)
    first = read()
    assert first.startswith("\rstep 8/9   89%  loss 1.2500")
    assert "\n" not in first
    shown.say("note   something")
    assert re.fullmatch(r"\r +\rnote   something\r\n", read())
    shown.step(9, **{**STEP, "grad_norm": None})
    shown.close()
    last = read()
    assert last.startswith("\rstep 9/9  100%")
    assert last.endswith("\r\n")
    for text in (first, last):
        assert len(text.strip("\r\n")) < columns
        assert "\x1b" not in text
    stream.close()


def test_a_shorter_line_hides_the_longer_one_before(clock, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    stream, read = terminal(200)
    shown = Progress(0, 9, stream=stream)
    shown.step(1, **STEP)
    longer = read().strip("\r")
    shown.step(2, **{**STEP, "grad_norm": None})
    shorter = read().strip("\r")
    assert len(shorter) == len(longer)
    assert shorter != shorter.rstrip()
    stream.close()


def test_a_dumb_terminal_gets_plain_lines(clock, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    stream, read = terminal(200)
    shown = Progress(0, 9, stream=stream)
    shown.step(1, **STEP)
    assert read() == ""
    stream.close()


def test_quiet_is_silent(clock):
    stream = io.StringIO()
    shown = Progress(0, 9, quiet=True, stream=stream)
    clock.now += 100
    shown.step(1, **STEP)
    shown.say("note   something")
    shown.close()
    assert stream.getvalue() == ""


class Broken(io.StringIO):
    """A stream whose reader went away."""

    def write(self, text):
        raise BrokenPipeError(32, "Broken pipe")


@pytest.mark.parametrize("stream", [None, Broken(), "closed"])
def test_a_lost_stream_ends_nothing(monkeypatch, stream):
    if stream == "closed":
        stream = io.StringIO()
        stream.close()
    monkeypatch.setattr(module.sys, "stderr", stream)
    module.say("a line")
    shown = Progress(0, 1)
    shown.say("note")
    shown.step(1, **STEP)
    shown.close()
