"""Asking the program to stop, with real signals: what it saves, what it says, who is left, and how it goes on."""

import os
import signal

import pytest

from drills.program import (
    Reference,
    children,
    cli,
    digests,
    kinds,
    last_end,
    ranks_of,
    started,
    write_run,
)
from elinvar.record.folder import RunFolder

pytestmark = pytest.mark.drill

STOPPED, INTERRUPTED = 75, 130


@pytest.fixture(scope="module")
def run_file(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("signals"))


@pytest.fixture(scope="module")
def reference(run_file, tmp_path_factory):
    return Reference(run_file, tmp_path_factory.mktemp("reference") / "run")


def assert_goes_on(folder, reference, ranks):
    """A resume takes three more steps on `ranks` ranks, and every step learned what it should."""
    generations = RunFolder.open(folder).generations()
    until = (generations[-1].step if generations else 0) + 3
    assert cli("resume", folder, f"ranks={ranks}", "--until", until, "--quiet") == 0
    assert digests(folder) == reference(until)
    assert last_end(folder).to_step == until


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize(
    ("number", "group", "code", "word"),
    [
        (signal.SIGTERM, False, STOPPED, "stopped"),
        (signal.SIGTERM, True, STOPPED, "stopped"),  # as Slurm does
        (signal.SIGINT, True, INTERRUPTED, "interrupted"),  # as a terminal does
    ],
    ids=["SIGTERM", "SIGTERM to all", "Ctrl-C"],
)
def test_a_stop_is_saved_at_an_agreed_step(tmp_path, run_file, reference, ranks, number, group, code, word):
    folder = tmp_path / "run"
    # An input worker that a signal to all ends is missed at once: nothing is made ahead.
    more = ["input.workers=1", "input.prefetch_bytes=0"] if group else []
    program = started(tmp_path, run_file, "--run", folder, f"ranks={ranks}", *more)
    program.wait_for_step(folder, 3)
    program.send(number, group=group)
    found, lines = program.end()
    assert found == code, program.said
    end = last_end(folder)
    assert (end.reason, end.message) == (word, "")
    assert RunFolder.open(folder).generations()[-1].step == end.to_step >= 3
    assert lines[-1] == f"resumable from {end.to_step}: elinvar resume {folder}"
    assert any(line.startswith(f"{word} step {end.to_step} ") for line in lines)
    assert "Traceback" not in program.said
    asked = [line for line in lines if line.startswith("interrupted: saving")]
    assert len(asked) == (1 if code == INTERRUPTED else 0)
    assert not RunFolder.open(folder).is_running
    assert_goes_on(folder, reference, 4 - ranks)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_second_ctrl_c_quits_at_once_and_says_what_is_lost(tmp_path, run_file, reference, ranks):
    folder = tmp_path / "run"
    more = ["input.workers=1", "input.prefetch_bytes=0"]
    program = started(tmp_path, run_file, "--run", folder, f"ranks={ranks}", *more)
    program.wait_for_step(folder, 3)
    # A step that cannot end: an input worker, or a rank, stands still.
    still = ranks_of(program)[1] if ranks > 1 else children(program.process.pid)[-1]
    os.kill(still, signal.SIGSTOP)
    program.send(signal.SIGINT, group=True)
    program.wait_for_text("interrupted: saving at the end of this step (Ctrl-C again quits at once)")
    program.send(signal.SIGINT, group=True)
    code, lines = program.end()
    assert code == INTERRUPTED, program.said
    step = RunFolder.open(folder).generations()[-1].step
    assert lines[-1].strip() == f"resumable from {step}"
    assert any(f"quit without saving: every step after {step} is lost" in line for line in lines)
    if ranks > 1:
        assert last_end(folder).reason == "interrupted"
    assert_goes_on(folder, reference, 3 - ranks)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_before_the_first_step_loses_nothing(tmp_path, run_file, reference, ranks, number):
    folder = tmp_path / "run"
    program = started(tmp_path, run_file, "--run", folder, f"ranks={ranks}")
    program.wait_for_text("run    ")
    program.send(number, group=True)
    code, _ = program.end()
    assert code == (STOPPED if number == signal.SIGTERM else INTERRUPTED), program.said
    assert "Traceback" not in program.said
    words = {signal.SIGTERM: "stopped", signal.SIGINT: "interrupted"}
    if RunFolder.open(folder).attempts():  # it came so late that a step was taken and saved
        assert last_end(folder).reason == words[number]
    else:
        assert kinds(folder, "stop")[-1].data["reason"] == words[number]
    # What was asked for is known all the same: a digest of each step.
    assert_goes_on(folder, reference, 1)


def test_a_hang_up_that_the_caller_ignores_stays_ignored_and_a_quit_stops(tmp_path, run_file):
    folder = tmp_path / "run"

    def nohup():
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    program = started(tmp_path, run_file, "--run", folder, "ranks=2", before=nohup)
    program.wait_for_step(folder, 2)
    program.send(signal.SIGHUP, group=True)
    program.wait_for_step(folder, 8)
    program.send(signal.SIGQUIT, group=True)
    assert program.end()[0] == STOPPED, program.said
    assert last_end(folder).reason == "stopped"
    assert kinds(folder, "fault") == []


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_terminal_that_goes_away_stops_the_run(tmp_path, run_file, ranks):
    folder = tmp_path / "run"
    program = started(tmp_path, run_file, "--run", folder, f"ranks={ranks}")
    program.wait_for_step(folder, 2)
    program.send(signal.SIGHUP, group=True)
    assert program.end()[0] == STOPPED, program.said
    assert RunFolder.open(folder).generations()[-1].step == last_end(folder).to_step
