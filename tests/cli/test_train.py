"""`elinvar train`: new folders, what is said and where, skipped steps, damaged caches, and what is refused."""

import json
import os
import pty
import re
import subprocess
import sys

import pytest

from drills.program import ENVIRONMENT, RUN, Reference, cli, digests, kinds, last_end, write_run
from elinvar.record.folder import RunFolder


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("train")


@pytest.fixture(scope="module")
def run_file(place):
    return write_run(place)


@pytest.fixture(scope="module")
def reference(run_file, place):
    return Reference(run_file, place / "reference")


def test_a_new_run_gets_a_folder_named_after_the_experiment(tmp_path, run_file, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for number in ("", "-2"):
        assert cli("train", run_file, "--until", 1) == 0
        said = capsys.readouterr()
        name = re.search(r"^run    (\S+) \(new\)", said.err, re.MULTILINE)[1]
        digest = json.loads((tmp_path / name / "experiment.json").read_text())["experiment_digest"]
        assert name == str(tmp_path / "runs" / f"run-{digest[:6]}{number}")
        assert said.out == ""
    [attempt] = RunFolder.open(tmp_path / name).attempts()
    assert attempt.start.command
    assert attempt.start.plan["until"] == 1


@pytest.mark.drill
def test_what_is_said_of_a_run_elsewhere_and_on_a_terminal(tmp_path, run_file):
    """The same run, its stderr once a file and once a terminal of 80 columns."""
    words = [sys.executable, "-m", "elinvar", "train", run_file, "ranks=1", "--until", "3", "--run"]
    plain = subprocess.run(
        [*words, tmp_path / "plain"], env=ENVIRONMENT, capture_output=True, timeout=60, check=True
    )
    assert plain.stdout == b""
    lines = plain.stderr.decode().splitlines()
    assert [line.split()[0] for line in lines] == ["plan", "run", "step", "saved", "learned", "report", "try"]
    assert b"\x1b" not in plain.stderr
    assert b"\r" not in plain.stderr
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*words, tmp_path / "shown"],
        env={**ENVIRONMENT, "TERM": "xterm"},
        stdout=subprocess.PIPE,
        stderr=theirs,
    )
    os.close(theirs)
    shown = b""
    while True:
        try:
            part = os.read(ours, 1 << 16)
        except OSError:
            break
        shown += part
    assert process.communicate(timeout=60)[0] == b""
    assert process.returncode == 0
    os.close(ours)
    [redrawn] = [line for line in shown.decode().split("\n") if "step 1/3" in line]
    assert redrawn.startswith("\rstep 1/3")
    assert redrawn.count("\r") >= 3
    assert "\x1b" not in redrawn


def test_progress_begins_at_the_step_that_was_restored(tmp_path, run_file, capsys):
    folder = tmp_path / "run"
    assert cli("train", run_file, "--run", folder, "--until", 4, "--quiet") == 0
    capsys.readouterr()
    assert cli("train", run_file, "--run", folder, "--until", 6) == 0
    steps = [line for line in capsys.readouterr().err.splitlines() if line.startswith("step ")]
    assert len(steps) == 1
    assert steps[0].startswith("step 6/6  100%")


@pytest.mark.parametrize("ranks", [1, 2])
def test_steps_that_do_not_converge_are_skipped_and_recorded_with_nulls(tmp_path, run_file, capsys, ranks):
    folder = tmp_path / "run"
    words = ["lr=1e22", "max_grad_norm=0", f"ranks={ranks}", "--until", 5]
    assert cli("train", run_file, *words, "--run", folder) == 0
    rows, unreadable = RunFolder.open(folder).metrics()
    assert unreadable == 0
    skipped = [row for row in rows if row.skipped]
    assert skipped
    assert all(row.grad_norm is None for row in skipped)
    for file in ("metrics.jsonl", "events.jsonl"):
        text = (folder / file).read_text()
        assert not re.search(r"\b(NaN|Infinity|nan|inf)\b", text.replace("non-finite", ""))
        for line in text.splitlines():
            json.loads(line, parse_constant=pytest.fail)
    events = kinds(folder, "skipped_step")
    assert [event.step for event in events] == [row.step for row in skipped]
    for event in events:
        assert event.data["reason"] == "non-finite gradients"
        assert len(event.data["samples"]) == 4
    if ranks == 1:  # the lines of a forked rank go where the forkserver's went
        assert f"  {len(skipped)} skipped  " in capsys.readouterr().err


@pytest.mark.parametrize("ranks", [1, 2])
def test_where_the_experiment_says_stop_the_run_fails_with_its_samples(tmp_path, run_file, capsys, ranks):
    folder = tmp_path / "run"
    words = ["lr=1e22", "max_grad_norm=0", "non_finite=stop", f"ranks={ranks}", "checkpoint.every=1"]
    assert cli("train", run_file, *words, "--run", folder) == 1
    lines = capsys.readouterr().err.splitlines()
    step = RunFolder.open(folder).generations()[-1].step
    assert lines[-1].strip() == f"resumable from {step}"
    assert f"error: step {step + 1} has non-finite gradients" in lines
    [samples] = [line for line in lines if line.startswith("  its samples: ")]
    assert len(samples.split(",")) == 4
    assert last_end(folder).reason == "failed"
    assert last_end(folder).to_step == step


@pytest.mark.drill
def test_a_damaged_cache_is_a_note_and_the_run_is_the_same(tmp_path, run_file, reference):
    cache = tmp_path / "cache"
    environment = {**ENVIRONMENT, "ELINVAR_CACHE": str(cache)}

    def train(name):
        return subprocess.run(
            [sys.executable, "-m", "elinvar", "train", run_file, "--until", "2", "--run", tmp_path / name],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        ).stderr

    assert "\nnote " not in "\n" + train("first")
    [tokens] = cache.glob("stores/*/tokens*")
    data = bytearray(tokens.read_bytes())
    data[100] ^= 1
    tokens.write_bytes(data)
    said = train("second")
    [note] = [line for line in said.splitlines() if line.startswith("note ")]
    assert note.endswith("and built again")
    assert "Warning" not in said
    assert digests(tmp_path / "second") == reference(2)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["lr=nan"], "experiment.optimizer.lr cannot be nan"),
        (["microbatch=3"], "microbatches"),
        (["seed=1.5"], "seed"),
        (["--until", "0"], "lies outside the run"),
        (["--until", "x"], "--until"),
        (["--accept", "anything"], "same-math"),
        (["--machine", "nowhere.toml"], "nowhere.toml"),
        (["data.source=nowhere.txt"], "nowhere.txt"),
        (["tokens_per_sequence=1000000"], "error: "),
        (["vocab_size=10"], "vocab"),
    ],
)
def test_what_cannot_run_is_refused_and_makes_nothing(tmp_path, run_file, capsys, words, said):
    assert cli("train", run_file, *words, "--run", tmp_path / "run") == 2
    assert said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_anything_else_in_it_is_refused(tmp_path, run_file, capsys):
    (tmp_path / "thesis.txt").write_text("mine")
    assert cli("train", run_file, "--run", tmp_path) == 2
    assert "it holds thesis.txt" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_report_that_cannot_be_written_takes_nothing_from_the_run(tmp_path, run_file, capsys):
    folder = tmp_path / "run"
    assert cli("train", run_file, "--run", folder, "--until", 1, "--quiet") == 0
    (folder / "report.html").unlink()
    (folder / "report.html").mkdir()
    assert cli("resume", folder, "--until", 2) == 0
    assert f"note   the report was not written: Is a directory; to write it: elinvar report {folder}" in (
        capsys.readouterr().err
    )
    assert last_end(folder).to_step == 2


def test_a_defect_shows_its_traceback_and_still_how_to_go_on(tmp_path, run_file, capsys, monkeypatch):
    folder = tmp_path / "run"
    assert cli("train", run_file, "--run", folder, "--until", 2, "--quiet") == 0

    def broken(*arguments, **more):
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr("elinvar.run.loop.totals", broken)
    assert cli("resume", folder, "--until", 4) == 1
    lines = capsys.readouterr().err.splitlines()
    assert "Traceback (most recent call last):" in lines
    assert "error: ZeroDivisionError: a defect" in lines
    assert lines[-1].strip() == "resumable from 2"
    assert (last_end(folder).reason, last_end(folder).message) == ("failed", "ZeroDivisionError: a defect")
    assert last_end(folder).to_step == 2


def test_a_job_larger_than_the_machine_does_not_start(tmp_path, capsys):
    small = tmp_path / "small.toml"
    small.write_text('name = "small"\ncores = 2\nmemory_bytes = 1000000\n')
    run_file = write_run(tmp_path, RUN)
    code = cli("train", run_file, "--machine", small, "--run", tmp_path / "run")
    assert code == 3, capsys.readouterr().err
    assert not (tmp_path / "run").exists()
