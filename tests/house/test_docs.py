"""What the pages say is real: links lead somewhere, commands and options exist, overrides name keys."""

import re
import shlex
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import click
import pytest

from elinvar.cli.main import COMMANDS
from elinvar.plan.machine import KNOWN
from elinvar.plan.plan import make_plan
from elinvar.spec.fields import all_paths
from elinvar.spec.read import read

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
    if path.parent.name != "design" and path.name != "commands.md"
)
COMMAND = re.compile(r"(?:^ {4}(?:\$ )?|`|-- )(?:\.venv/bin/)?(elinvar [a-z][^`\n]*)", re.MULTILINE)


def relative(path):
    return str(path.relative_to(ROOT))


def commands(text):
    """Every command line of a page, without what explains it: two blanks or a comment end it."""
    for line in COMMAND.findall(text):
        yield re.split(r"\s{2,}|\s#", line)[0].rstrip(".,;:")


@pytest.mark.parametrize("path", PAGES, ids=relative)
def test_links_lead_to_files(path):
    text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    targets = re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", text)
    missing = [
        target
        for target in targets
        if not target.startswith(("http:", "https:")) and not (path.parent / target).exists()
    ]
    assert missing == []


def option_names(command):
    return {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}


def wrong(line):
    """What is not real about a command line, or None."""
    words = shlex.split(line)[1:]
    name = words[0]
    if name not in COMMANDS:
        return f"no command {name}"
    command = import_module(f"elinvar.cli.{name}").command
    rest = words[1:]
    while isinstance(command, click.Group) and rest and rest[0] in command.commands:
        command, rest = command.commands[rest[0]], rest[1:]
    for word in rest:
        if word.startswith("--") and word not in ("--help", "--"):
            if word.split("=")[0] not in option_names(command):
                return f"no option {word}"
        elif re.match(r"[a-z_.]+=", word):
            key = word.split("=")[0]
            if not any(f".{known}".endswith(f".{key}") for known in all_paths()):
                return f"no key {key}"
    return None


@pytest.mark.parametrize("path", PAGES, ids=relative)
def test_commands_are_real(path):
    found = {line: wrong(line) for line in commands(path.read_text(encoding="utf-8"))}
    assert {line: reason for line, reason in found.items() if reason} == {}


def test_the_check_finds_what_is_wrong():
    text = "    elinvar plan tiny ranks=3     a comment\nsee `elinvar show tiny --origin`.\n"
    assert list(commands(text)) == ["elinvar plan tiny ranks=3", "elinvar show tiny --origin"]
    assert wrong("elinvar plan tiny optimizer.lr=1 --json") is None
    assert wrong("elinvar plan tiny optimizer.lear=1") == "no key optimizer.lear"
    assert wrong("elinvar plan --jsno") == "no option --jsno"
    assert wrong("elinvar planned") == "no command planned"


def test_the_numbers_of_the_readme_are_those_of_the_plan():
    reading = read("tiny")
    plan = make_plan(reading.experiment, reading.execution, KNOWN["cpu-2"])
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    said = f"{plan.num_parameters:,} parameters, {plan.steps} steps of {plan.tokens_per_step:,} tokens, {plan.ranks} processes"
    assert said in text


def test_the_example_makes_a_text_that_suffices(tmp_path):
    example = ROOT / "examples" / "own-text"
    shutil.copy(example / "run.toml", tmp_path)
    [line] = re.findall(r"^ {4}(python .* > text\.txt)$", (example / "README.md").read_text(), re.MULTILINE)
    subprocess.run(line.replace("python", sys.executable, 1), shell=True, cwd=tmp_path, check=True)
    experiment = read(str(tmp_path / "run.toml")).experiment
    assert experiment.data.source == str(tmp_path / "text.txt")
    size = (tmp_path / "text.txt").stat().st_size
    assert size >= 100_000
    # A token stands for at most a few bytes of English: the windows of an epoch are there many times over.
    assert size > 40 * experiment.batch.tokens_per_sequence * experiment.data.held_out
    assert "/text.txt" in (example / ".gitignore").read_text().split()
