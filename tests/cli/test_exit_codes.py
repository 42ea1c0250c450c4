"""The exit codes of docs/reference/exit-codes.md, one by one, from the commands that run something.

Real signals to real processes are in `test_signals.py`; here they come from this process itself.
"""

import os
import re
import signal
import threading
import time
from pathlib import Path

import pytest

from drills.program import cli, last_end, write_run
from elinvar.record.folder import RunFolder

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "exit-codes.md"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("codes")


@pytest.fixture(scope="module")
def run_file(place):
    return write_run(place)


def zero(folder, run_file):
    assert cli("train", run_file, "--run", folder, "--until", 1, "--quiet") == 0
    return cli("resume", folder, "--until", 1)


def one(folder, run_file):
    words = ["lr=1e22", "max_grad_norm=0", "non_finite=stop", "checkpoint.every=1"]
    return cli("train", run_file, *words, "--run", folder)


def two(folder, run_file):
    return cli("train", run_file, "sed=3", "--run", folder)


def three(folder, run_file):
    machine = folder.with_name("small.toml")
    machine.write_text('name = "small"\ncores = 1\nmemory_bytes = 1000000\n')
    return cli("train", run_file, "--machine", machine, "--run", folder)


def four(folder, run_file):
    assert cli("train", run_file, "--run", folder, "--until", 1, "--quiet") == 0
    (RunFolder.open(folder).generations()[0].path / "rank-0.bin").write_bytes(b"")
    return cli("checkpoint", "check", folder)


def send_when_running(folder, number):
    """A thread that sends this process `number` once the run has taken two steps."""

    def wait():
        deadline = time.monotonic() + 30
        journal = folder / "metrics.jsonl"
        while time.monotonic() < deadline:
            if journal.exists() and journal.read_bytes().count(b"\n") >= 2:
                os.kill(os.getpid(), number)
                return
            time.sleep(0.005)

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def stopped(folder, run_file, number=signal.SIGTERM, ranks=1):
    thread = send_when_running(folder, number)
    code = cli("train", run_file, f"ranks={ranks}", "--run", folder)
    thread.join()
    return code


def interrupted(folder, run_file):
    return stopped(folder, run_file, signal.SIGINT)


ENDS = {0: zero, 1: one, 2: two, 3: three, 4: four, 75: stopped, 130: interrupted}


@pytest.mark.parametrize("code", ENDS)
def test_each_code_has_an_end(tmp_path, run_file, capsys, code):
    assert ENDS[code](tmp_path / "run", run_file) == code
    lines = capsys.readouterr().err.splitlines()
    error = [line for line in lines if line.startswith("error: ")]
    assert len(error) == (1 if code in (1, 2, 3, 4) else 0)
    last = {
        1: r"  resumable from \d+",
        75: r"resumable from \d+: elinvar resume .*",
        130: r"resumable from \d+: .*",
    }
    assert re.fullmatch(last.get(code, ".*"), lines[-1])
    if code in (2, 3):
        assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_parent_of_ranks_hears_for_them(tmp_path, run_file, number):
    code = 75 if number == signal.SIGTERM else 130
    assert stopped(tmp_path / "run", run_file, number, ranks=2) == code
    assert last_end(tmp_path / "run").reason == ("stopped" if code == 75 else "interrupted")


def test_the_page_lists_these_codes():
    listed = [int(code) for code in re.findall(r"^\| (\d+) \|", PAGE.read_text(), re.MULTILINE)]
    assert listed == [*ENDS, 141]
