"""The same job under torchrun: same digests, same ends, and the launcher's word against the file's."""

import os
import signal
import subprocess
import sys
import time

import pytest

from drills.program import Program, Reference, cli, digests, last_end, write_run
from elinvar.record.folder import RunFolder

pytestmark = pytest.mark.drill

TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "--", "elinvar"]


@pytest.fixture(scope="module")
def run_file(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("torchrun"))


@pytest.fixture(scope="module")
def reference(run_file, tmp_path_factory):
    return Reference(run_file, tmp_path_factory.mktemp("reference") / "run")


def torchrun(tmp_path, *arguments):
    return Program(tmp_path, *arguments, prefix=TORCHRUN)


def test_ranks_of_a_launcher_learn_the_same_and_a_complete_run_ends_well(tmp_path, run_file, reference):
    folder = tmp_path / "run"
    words = ["train", run_file, "--run", folder, "--until", 5]
    code, lines = torchrun(tmp_path, *words).end()
    assert code == 0, lines
    assert digests(folder) == reference(5)
    [attempt] = RunFolder.open(folder).attempts()
    assert attempt.start.execution["ranks"] == 2
    assert attempt.start.plan["wanted_ranks"] == "auto"
    assert (attempt.end.reason, attempt.end.to_step) == ("until", 5)
    assert len([line for line in lines if line.startswith("plan ")]) == 1
    code, lines = torchrun(tmp_path, *words).end()
    assert code == 0, lines
    assert "done   step 5 is reached already; nothing to do" in lines
    assert len(RunFolder.open(folder).attempts()) == 1
    # "auto" goes on as what the next start gives it
    assert cli("resume", folder, "--until", 6, "--quiet") == 0
    assert RunFolder.open(folder).attempts()[-1].start.execution["ranks"] == 1
    assert digests(folder) == reference(6)


@pytest.mark.parametrize("to_all", [False, True])
def test_a_stop_of_the_launcher_is_saved(tmp_path, run_file, reference, to_all):
    folder = tmp_path / "run"
    program = torchrun(tmp_path, "train", run_file, "--run", folder)
    program.wait_for_step(folder, 3)
    program.send(signal.SIGTERM, group=to_all)
    code, lines = program.end()
    assert code != 0
    step = RunFolder.open(folder).generations()[-1].step
    assert (last_end(folder).reason, last_end(folder).to_step) == ("stopped", step)
    assert f"resumable from {step}: elinvar resume {folder}" in lines
    assert not RunFolder.open(folder).is_running
    assert cli("resume", folder, "--until", step + 2, "--quiet") == 0
    assert digests(folder) == reference(step + 2)


def test_other_ranks_than_the_file_says_are_refused_by_all(tmp_path, run_file):
    folder = tmp_path / "run"
    code, lines = torchrun(tmp_path, "train", run_file, "ranks=3", "--run", folder).end()
    assert code == 1  # torchrun's own
    said = "\n".join(lines)
    assert "execution.ranks is 3, but the launcher started 2 ranks (WORLD_SIZE)" in said
    assert "exitcode  : 2 " in said
    assert "exitcode  : 1 " not in said
    assert not folder.exists()


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"WORLD_SIZE": "2"}, "RANK is '' in the environment, not a number"),
        ({"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0", "MASTER_PORT": "x"}, "MASTER_PORT is 'x'"),
        (
            {"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0", "MASTER_PORT": "1"},
            "MASTER_ADDR is missing from the environment",
        ),
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE is 'two' in the environment"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE is '0' in the environment"),
    ],
)
def test_half_a_launcher_is_refused(tmp_path, run_file, monkeypatch, capsys, variables, words):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert cli("train", run_file, "--run", tmp_path / "run") == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_launcher_of_one_rank_is_this_process(tmp_path, run_file, monkeypatch, reference):
    for name, value in {"WORLD_SIZE": "1", "RANK": "0", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    assert cli("train", run_file, "--run", tmp_path / "run", "--until", 2, "--quiet") == 0
    assert digests(tmp_path / "run") == reference(2)
    assert os.environ["WORLD_SIZE"] == "1"


@pytest.mark.drill
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 75), (signal.SIGINT, 130)])
def test_a_rank_that_waits_for_the_others_hears_a_stop(run_file, tmp_path, number, code):
    variables = {
        "WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "29571"
    }  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-m", "elinvar", "train", run_file, "--run", tmp_path / "run"],
        env={**os.environ, **variables},
        stderr=subprocess.DEVNULL,
    )
    time.sleep(6)  # PyTorch is imported by then, and the first wait has begun
    process.send_signal(number)
    assert process.wait(timeout=20) == code
    assert not (tmp_path / "run").exists()


def test_a_rank_beyond_the_world_is_refused(run_file, tmp_path):
    variables = {
        "WORLD_SIZE": "2", "RANK": "5", "LOCAL_RANK": "5", "MASTER_ADDR": "localhost", "MASTER_PORT": "29571"
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "elinvar", "train", run_file, "--run", tmp_path / "run"],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "RANK is 5, but WORLD_SIZE is 2" in done.stderr
