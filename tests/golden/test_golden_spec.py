"""Text that users see, word by word. `ELINVAR_GOLDEN=write pytest tests/golden` writes the files anew."""

import os
from pathlib import Path

import pytest

from elinvar.cli.main import run
from elinvar.spec.explain import refused_continuation
from elinvar.spec.read import read

HERE = Path(__file__).parent


def check(name, text):
    path = HERE / f"{name}.txt"
    if os.environ.get("ELINVAR_GOLDEN") == "write":
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.fixture
def run_file(tmp_path, monkeypatch):
    """A run file with several mistakes, in the working folder."""
    monkeypatch.chdir(tmp_path)

    def write(text):
        (tmp_path / "run.toml").write_text(text)
        return "run.toml"

    return write


COMMANDS = {
    "help": (["--help"], 0),
    "help_show": (["show", "--help"], 0),
    "show_tiny": (["show", "tiny"], 0),
    "show_small": (["show", "small"], 0),
    "show_tiny_origin": (["show", "tiny", "--origin", "schedule.kind=constant", "execution.ranks=3"], 0),
    "diff_tiny_small": (["diff", "tiny", "small"], 0),
    "error_command": (["trian", "tiny"], 2),
    "error_preset": (["show", "tinny"], 2),
    "error_unknown_key": (["show", "tiny", "optimizer.wieght_decay=0.2"], 2),
    "error_ambiguous": (["show", "tiny", "vocab_size=512"], 2),
    "error_shape": (["show", "tiny", "hidden_size=130"], 2),
    "error_dropout": (["show", "tiny", "dropout=0.1"], 2),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_command(capsys, monkeypatch, name):
    monkeypatch.setenv("COLUMNS", "100")
    arguments, code = COMMANDS[name]
    assert run(arguments) == code
    out, err = capsys.readouterr()
    check(name, out + err)


def test_a_file_with_many_mistakes(capsys, run_file):
    name = run_file(
        'base = "tiny"\n'
        "[experiment]\n"
        "sead = 3\n"
        "length.steps = 1.5\n"
        "\n"
        "[experiment.optimizer]\n"
        "wieght_decay = 0.2\n"
        'lr = "3e-4"\n'
        "\n"
        "[experiment.schedule]\n"
        'kind = "constant"\n'
        "decay_steps = 100\n"
        "\n"
        "[execution]\n"
        "ranks = 0\n"
        "sharding = 2\n"
    )
    assert run(["show", name]) == 2
    check("error_many", capsys.readouterr().err)


def test_a_key_written_twice(capsys, run_file):
    assert run(["show", run_file("[experiment]\nseed = 1\nseed = 2\n")]) == 2
    check("error_twice", capsys.readouterr().err)


def test_a_refused_continuation():
    recorded, asked = read("tiny").experiment, read("tiny", ["optimizer.lr=5e-4", "steps=400"]).experiment
    check("refused_continuation", f"{refused_continuation('runs/tiny-68470d', recorded, asked, 120)}\n")
