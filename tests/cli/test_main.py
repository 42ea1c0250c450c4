import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import click
import pytest

from elinvar import __version__
from elinvar.cli import main as main_module
from elinvar.cli.main import COMMANDS, run
from elinvar.errors import DoesNotFit, InvalidInput, Mismatch, RunFailed

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def program(*arguments, **options):
    """The program in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "elinvar", *arguments],
        capture_output=True,
        text=True,
        env={**ENVIRONMENT, **options.pop("env", {})},
        timeout=60,
        check=False,
        **options,
    )


def ending(monkeypatch, raised):
    """The exit code of a command that raises."""

    @click.command("show")
    def command():
        raise raised

    monkeypatch.setattr(main_module, "import_module", lambda _: type("module", (), {"command": command}))
    return run(["show"])


@pytest.mark.parametrize(
    "raised, code",
    [
        (InvalidInput("a", ["b"]), 2),
        (DoesNotFit("a"), 3),
        (Mismatch("a"), 4),
        (RunFailed("a"), 1),
        (KeyboardInterrupt(), 130),
        (click.exceptions.Exit(75), 75),
    ],
)
def test_each_end_has_its_exit_code(monkeypatch, capsys, raised, code):
    assert ending(monkeypatch, raised) == code
    out, err = capsys.readouterr()
    assert out == ""
    if isinstance(raised, InvalidInput):
        assert err == "error: a\n  b\n"


def test_a_defect_keeps_its_traceback(monkeypatch):
    with pytest.raises(ZeroDivisionError):
        ending(monkeypatch, ZeroDivisionError())


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["trian"], ["no such command: trian", "the nearest is train", "see: elinvar --help"]),
        (["xyzzy"], ["no such command: xyzzy"]),
        (["show", "--jsn"], ["--json", "see: elinvar show --help"]),
        (["show", "--lr", "3"], ["values are written without dashes: experiment.optimizer.lr=VALUE"]),
        (["show"], ["Missing argument 'RUN.toml|PRESET|DIR'"]),
        (["diff", "tiny"], ["Missing argument 'B'"]),
        (["--versoin"], ["--version"]),
    ],
)
def test_usage_errors_help_and_exit_with_2(capsys, arguments, words):
    assert run(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    for word in words:
        assert word in err


def test_the_version(capsys):
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"elinvar {__version__}\n"


def test_help_lists_every_command_and_imports_none(capsys):
    assert run(["--help"]) == 0
    text = capsys.readouterr().out
    for name, line in COMMANDS.items():
        assert f"  {name}" in text
        assert line in " ".join(text.split())


@pytest.mark.parametrize("name", COMMANDS)
def test_a_listed_command_is_one_file(name):
    assert find_spec(f"elinvar.cli.{name}") is not None


@pytest.mark.parametrize(
    "arguments, banned",
    [
        (["--help"], ["torch", "numpy", "msgspec", "rich", "blake3", "elinvar.spec"]),
        (["show", "tiny"], ["torch", "numpy", "rich"]),
        (["show", "tiny", "--origin"], ["torch", "numpy", "rich"]),
        (["diff", "tiny", "small"], ["torch", "numpy", "rich"]),
        (["show", "--schema"], ["torch", "numpy", "rich"]),
    ],
)
def test_light_commands_import_nothing_heavy(arguments, banned):
    code = (
        "import sys; from elinvar.cli.main import run; assert run(sys.argv[2:]) == 0;"
        "found = sorted({name for name in sys.argv[1].split(',')} & set(sys.modules)); assert not found, found"
    )
    subprocess.run(
        [sys.executable, "-c", code, ",".join(banned), *arguments],
        check=True,
        stdout=subprocess.DEVNULL,
        env=ENVIRONMENT,
        timeout=60,
    )


def test_the_module_is_the_program():
    done = program("show", "tiny", "lr=nan")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: experiment.optimizer.lr cannot be nan\n")
    assert "\x1b" not in done.stderr


def test_a_reader_that_goes_away_is_no_error():
    process = subprocess.Popen(
        [sys.executable, "-m", "elinvar", "show", "tiny"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=ENVIRONMENT,
    )
    process.stdout.close()
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (141, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
def test_a_full_disk_behind_stdout_is_one_clear_error():
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "elinvar", "show", "tiny"],
            stdout=full,
            stderr=subprocess.PIPE,
            env=ENVIRONMENT,
            timeout=60,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr == b"error: the output cannot be written: No space left on device\n"


def test_a_terminal_without_utf8_gets_escapes():
    done = program("show", "--schema", env={"PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0
    done = program("show", "tiny", "data.source=é.txt", env={"PYTHONIOENCODING": "ascii"})
    assert done.returncode == 2
    assert done.stderr.startswith("error: data source ")
    done = program("show", "tiny", "text_field=é", env={"PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0
    assert 'text_field = "\\xe9"' in done.stdout
