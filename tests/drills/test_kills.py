"""Processes that die without a word: ranks, their input workers, the program itself, the last lines of its journals."""

import os
import signal
from pathlib import Path

import msgspec
import pytest

from drills.program import (
    Reference,
    children,
    cli,
    digests,
    kinds,
    last_end,
    left,
    ranks_of,
    started,
    write_run,
)
from elinvar.record.folder import RunFolder

pytestmark = pytest.mark.drill


@pytest.fixture(scope="module")
def run_file(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("kills"))


@pytest.fixture(scope="module")
def reference(run_file, tmp_path_factory):
    return Reference(run_file, tmp_path_factory.mktemp("reference") / "run")


def saved(folder):
    found = RunFolder.open(folder).generations()
    return found[-1].step if found else 0


def assert_goes_on(folder, reference, *overrides):
    until = saved(folder) + 3
    assert cli("resume", folder, *overrides, "--until", until) == 0
    assert digests(folder) == reference(max(digests(folder)))
    assert last_end(folder).to_step == until


@pytest.mark.parametrize("stands_still", [False, True])
def test_a_killed_rank_ends_the_run_and_nothing_saved_is_lost(tmp_path, run_file, reference, stands_still):
    folder = tmp_path / "run"
    program = started(tmp_path, run_file, "--run", folder, "ranks=3", "input.workers=1")
    program.wait_for_step(folder, 3)
    victim = ranks_of(program)[2]
    if stands_still:
        os.kill(victim, signal.SIGSTOP)
    os.kill(victim, signal.SIGKILL)
    code, lines = program.end()
    assert code == 1, program.said
    step = saved(folder)
    assert step >= 2
    assert lines[-1].strip() == f"resumable from {step}"
    assert lines[-2].strip() == f"to go on: elinvar resume {folder}"
    assert "error: rank 2 was killed by SIGKILL" in lines
    assert "Traceback" not in program.said
    end = last_end(folder)
    assert (end.reason, end.message) == ("failed", "rank 2 was killed by SIGKILL")
    assert not RunFolder.open(folder).is_running
    assert_goes_on(folder, reference, "ranks=2", "input.workers=0")


def test_a_rank_killed_before_the_first_generation_starts_anew(tmp_path, run_file, reference):
    folder = tmp_path / "run"
    program = started(tmp_path, run_file, "--run", folder, "ranks=2", "checkpoint.every=0")
    program.wait_for_step(folder, 2)
    os.kill(ranks_of(program)[0], signal.SIGKILL)
    code, lines = program.end()
    assert code == 1, program.said
    assert lines[-1].strip() == "no generation was saved: it starts anew at step 0"
    assert_goes_on(folder, reference, "ranks=1")
    [discarded] = kinds(folder, "discarded")
    assert discarded.data["from_step"] == 1


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_killed_input_worker_is_named(tmp_path, run_file, reference, ranks):
    folder = tmp_path / "run"
    more = ["input.workers=1", "input.prefetch_bytes=0"]  # with more ahead, it is missed later
    program = started(tmp_path, run_file, "--run", folder, f"ranks={ranks}", *more)
    program.wait_for_step(folder, 3)
    rank = ranks_of(program)[1] if ranks > 1 else program.process.pid
    worker = next(child for child in children(rank) if b"spawn_main" in command_line(child))
    os.kill(worker, signal.SIGKILL)
    code, lines = program.end()
    assert code == 1, program.said
    assert lines[-1].strip() == f"resumable from {saved(folder)}"
    assert f"(process {worker}) was killed by signal 9 (SIGKILL)" in program.said
    assert_goes_on(folder, reference, "ranks=1", "input.workers=0")


def command_line(pid):
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def test_ranks_and_workers_die_with_a_killed_program_and_torn_lines_are_closed(
    tmp_path, run_file, reference, capsys
):
    """One rank stands still, so that no lost connection can end it: only the system can."""
    folder = tmp_path / "run"
    program = started(tmp_path, run_file, "--run", folder, "ranks=2", "input.workers=1")
    program.wait_for_step(folder, 5)
    os.kill(ranks_of(program)[1], signal.SIGSTOP)
    program.send(signal.SIGKILL)
    program.process.wait()
    assert left(program.process.pid) == []
    run = RunFolder.open(folder)
    assert not run.is_running
    assert run.attempts()[-1].end is None
    for path in (run.attempts_path, run.metrics_path, run.events_path, run.ledger_path):
        whole = path.read_bytes()
        row = whole.split(b"\n")[-2]
        path.write_bytes(whole + row[: len(row) // 2])
    capsys.readouterr()
    assert_goes_on(folder, reference, "ranks=1", "input.workers=0")
    said = capsys.readouterr().err
    torn = {event.data["file"]: event.data["bytes"] for event in kinds(folder, "torn_line")}
    assert set(torn) == {"attempts.jsonl", "metrics.jsonl", "events.jsonl", "steps.jsonl"}
    assert run.metrics()[1] == run.events()[1] == run.ledger()[1] == 1
    for file, num_bytes in torn.items():
        assert f"note   {file} ended in a torn line of {num_bytes} bytes" in said
    assert [attempt.attempt for attempt in run.attempts()] == [1, 2]


def test_a_killed_program_of_one_rank_goes_on(tmp_path, run_file, reference):
    folder = tmp_path / "run"
    program = started(tmp_path, run_file, "--run", folder, "ranks=1", "input.workers=2")
    program.wait_for_step(folder, 3)
    program.send(signal.SIGKILL)
    program.process.wait()
    assert left(program.process.pid) == []
    assert_goes_on(folder, reference, "ranks=2", "sharding=1", "input.workers=0")


def test_a_second_process_on_a_folder_is_refused_and_names_the_first(tmp_path, run_file, capsys):
    folder = tmp_path / "run"
    program = started(tmp_path, run_file, "--run", folder, "ranks=1")
    program.wait_for_step(folder, 2)
    before = sorted(path.name for path in folder.iterdir())
    for words in (["resume", folder], ["train", run_file, "--run", folder]):
        assert cli(*words) == 2
        assert f"{folder} is in use: process {program.process.pid} on " in capsys.readouterr().err
    assert sorted(path.name for path in folder.iterdir()) == before
    program.send(signal.SIGTERM)
    assert program.end()[0] == 75
    assert len(RunFolder.open(folder).attempts()) == 1
    assert msgspec.json.decode((folder / "attempts.jsonl").read_bytes().splitlines()[-1])["row"] == "end"
