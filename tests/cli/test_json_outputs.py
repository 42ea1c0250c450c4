"""Every --json prints one JSON document that its published schema describes, and nothing else on stdout."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from jsonschema import Draft202012Validator

from elinvar.cli.main import commands

SCHEMAS = Path(__file__).parents[2] / "docs" / "reference" / "schemas"

SMALL = """
[experiment.length]
steps = 4
[experiment.model]
kind = "llama"
vocab_size = 257
hidden_size = 16
num_layers = 1
num_heads = 2
num_kv_heads = 1
intermediate_size = 32
[experiment.data]
source = "text.txt"
held_out = 2
[experiment.data.tokenizer]
kind = "bytes"
[experiment.batch]
microbatches = 2
sequences_per_microbatch = 1
tokens_per_sequence = 8
[experiment.optimizer]
kind = "adamw"
lr = 1e-2
[execution.record]
digest_every = 1
"""


def train(folder):
    """In a process of its own: a run sets switches of torch for its whole process."""
    line = [sys.executable, "-m", "elinvar", "train", "run.toml", "--run", "run", "--quiet"]
    done = subprocess.run(line, check=False, capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a text, a run file, a run of four steps and a store."""
    folder = tmp_path_factory.mktemp("place")
    (folder / "run.toml").write_text(SMALL)
    (folder / "text.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 12)
    train(folder)
    build = [
        "data",
        "build",
        str(folder / "store"),
        "--from",
        str(folder / "text.txt"),
        "--tokenizer",
        "bytes",
    ]
    assert CliRunner().invoke(commands, build, catch_exceptions=False).exit_code == 0
    return folder


CASES = {
    "plan": ("plan", "run.toml"),
    "show": ("show", "run.toml"),
    "diff": ("diff", "run", "run"),
    "init": ("init", "new.toml"),
    "doctor": ("doctor",),
    "report": ("report", "run", "--output", "page.html"),
    "sample": ("sample", "run", "the ", "--tokens", "3"),
    "samples-step": ("samples", "run", "--step", "2"),
    "samples-sample": ("samples", "run", "--sample", "3"),
    "checkpoint-list": ("checkpoint", "list", "run"),
    "checkpoint-show": ("checkpoint", "show", "run"),
    "checkpoint-check": ("checkpoint", "check", "run"),
    "data-show": ("data", "show", "run.toml"),
    "data-build": ("data", "build", "other", "--from", "text.txt", "--tokenizer", "bytes"),
    "data-check": ("data", "check", "store"),
}


def schema(name):
    return json.loads((SCHEMAS / f"{name}.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", CASES)
def test_output_fits_its_schema(place, name, monkeypatch):
    monkeypatch.chdir(place)
    done = CliRunner().invoke(commands, [*CASES[name], "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.stderr
    Draft202012Validator(schema(name)).validate(json.loads(done.stdout))


def test_every_schema_of_a_command_has_a_case():
    published = {path.stem for path in SCHEMAS.glob("*.json")} - {"run-file"}
    # `verify` prints the proof, which its own tests compare with record-proof.
    assert {name for name in published if not name.startswith("record-")} - {"verify"} == set(CASES)


FILES = {
    "record-attempt": "attempts.jsonl",
    "record-metrics": "metrics.jsonl",
    "record-event": "events.jsonl",
    "record-ledger": "ledger/steps.jsonl",
    "record-manifest": "generations/*/manifest.json",
    "record-commit": "generations/*/commit.json",
}


@pytest.mark.parametrize("name", FILES)
def test_the_record_of_a_real_run_fits_its_schemas(place, name):
    struct = "AttemptStart" if name == "record-attempt" else None
    (path,) = (place / "run").glob(FILES[name])
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert rows
    for row in rows:
        if struct is None or row["row"] == "start":
            Draft202012Validator(schema(name)).validate(row)
