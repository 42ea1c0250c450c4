"""Streams that go away, folders that go away, names that cannot be: real processes, one error or none."""

import subprocess
import sys

import pytest

from drills.program import ENVIRONMENT, last_end, write_run
from elinvar.record.folder import RunFolder

ELINVAR = f"{sys.executable} -m elinvar"


@pytest.fixture(scope="module")
def run_file(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("streams"))


def shell(line, cwd):
    """(exit code, stdout, stderr) of a bash line; the code is that of the first program in a pipe."""
    done = subprocess.run(
        ["bash", "-c", f"{line}; exit ${{PIPESTATUS[0]}}"],
        cwd=cwd,
        env={**ENVIRONMENT, "PYTHONWARNINGS": "default"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    "lost, ranks",
    [("2>&1 | head -1", 1), ("2>&1 | head -1", 2), ("2>&-", 1), ("2>&-", 2), ("2>/dev/full", 1)],
)
def test_a_run_goes_on_without_a_listener(tmp_path, run_file, lost, ranks):
    folder = tmp_path / "run"
    code, _, said = shell(
        f"{ELINVAR} train {run_file} ranks={ranks} --until 6 --run {folder} {lost}", tmp_path
    )
    assert (code, said) == (0, "")
    assert RunFolder.open(folder).generations()[-1].step == 6
    assert (last_end(folder).to_step, last_end(folder).reason) == (6, "until")
    assert (folder / "report.html").exists()


@pytest.mark.parametrize("lost", ["2>&-", "2>/dev/full"])
def test_an_error_without_a_listener_keeps_its_code(tmp_path, run_file, lost):
    assert shell(f"{ELINVAR} train {run_file} sed=3 {lost}", tmp_path)[0] == 2


@pytest.mark.parametrize("lost", [">&-", ">/dev/full"])
def test_output_that_cannot_be_written_is_one_error(tmp_path, run_file, lost):
    code, _, said = shell(f"{ELINVAR} show {run_file} {lost}", tmp_path)
    assert code == 1
    assert said.startswith("error: the output cannot be written: ")
    assert said.count("\n") == 1


def test_a_current_folder_that_is_gone_is_one_error(tmp_path, run_file):
    gone = "mkdir gone && cd gone && rmdir ../gone"
    code, _, said = shell(f"{gone}; {ELINVAR} show {run_file}", tmp_path)
    assert code == 2
    assert said.splitlines()[-2:] == [
        "error: the current folder no longer exists",
        "  cd to one that does",
    ]
    assert shell(f"{gone}; {ELINVAR} --version", tmp_path)[0] == 0


@pytest.mark.parametrize(
    "command", ["train", "resume", "report", "samples --step 1", "plan", "verify", "show"]
)
@pytest.mark.parametrize("name", ["x" * 300, "y/" * 3000])
def test_a_name_that_is_too_long_is_one_error(tmp_path, command, name, capsys, monkeypatch):
    from elinvar.cli.main import run

    monkeypatch.chdir(tmp_path)
    assert run([*command.split(), name]) == 2
    said = capsys.readouterr().err
    assert said.count("error: ") == 1


@pytest.mark.parametrize(
    "words, expected",
    [
        (
            ["samples", "run", "--step", "\N{ARABIC-INDIC DIGIT ONE}"],
            "--step '\N{ARABIC-INDIC DIGIT ONE}' is no number of a step",
        ),
        (
            ["resume", "run", "--until=\N{ARABIC-INDIC DIGIT ONE}"],
            "--until '\N{ARABIC-INDIC DIGIT ONE}' is no number of a step",
        ),
        (["resume", ""], "argument 2 is empty"),
        (["train", "tiny", "--run", ""], "argument 4 is empty"),
        (
            ["train", "tiny", "--fork", "run@\N{ARABIC-INDIC DIGIT ONE}"],
            "--fork 'run@\N{ARABIC-INDIC DIGIT ONE}' does not name a state",
        ),
        (["show", "tiny", "base=x.toml"], "no such key: base"),
    ],
)
def test_words_that_would_be_taken_for_something_else(tmp_path, words, expected, capsys, monkeypatch):
    from elinvar.cli.main import run

    monkeypatch.chdir(tmp_path)
    assert run(words) == 2
    said = capsys.readouterr().err
    assert f"error: {expected}" in said
    if "base" in expected:
        assert "base belongs in the run file" in said
    assert list(tmp_path.iterdir()) == []


def test_a_suggested_command_quotes_its_folder(tmp_path, run_file, capsys):
    from drills.program import cli

    folder = tmp_path / "my run; $x"
    assert cli("train", run_file, "--until", 1, "--run", folder) == 0
    assert f"try    elinvar sample '{folder}' " in capsys.readouterr().err
