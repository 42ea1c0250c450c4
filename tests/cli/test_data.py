"""`elinvar data`: what is built, shown and checked, and what each refusal ends with."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from elinvar.cli.data import command
from elinvar.errors import InvalidInput, Mismatch
from elinvar.record.folder import RunFolder
from elinvar.spec.read import experiment_json, read


def run(*arguments):
    result = CliRunner().invoke(command, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "own.txt"
    path.write_text("It was the best of times, it was the worst of times. " * 20)
    return path


def test_build_makes_a_store_that_a_run_file_can_name(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    out = run("build", "store", "--from", text, "--vocab-size", 280)
    assert out.startswith("source      store\ndocuments   1\nbytes       1,060\n")
    advice = "\n".join(line.strip() for line in out.partition("in a run file:")[2].splitlines())
    Path("run.toml").write_text(
        f'base = "tiny"\n{advice}\n[experiment.batch]\ntokens_per_sequence = 16\n', encoding="utf-8"
    )
    reading = read("run.toml", ["experiment.data.held_out=2"])
    Path("held.toml").write_text('base = "run.toml"\n[experiment.data]\nheld_out = 2\n')
    shown = json.loads(run("show", "held.toml", "--json"))
    assert shown["source"] == reading.experiment.data.source == str(tmp_path / "store")
    assert shown["digest"] == json.loads(run("show", "store", "--json"))["digest"]
    assert shown["windows"]["held_out"] == 2
    assert shown["windows"]["training"] + 2 == shown["windows"]["total"] == (shown["tokens"] - 1) // 16


def test_build_json_names_what_was_built(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"body": "é"}\n{"body": ""}\n')
    built = json.loads(
        run(
            "build",
            tmp_path / "store",
            "--from",
            path,
            "--tokenizer",
            "bytes",
            "--text-field",
            "body",
            "--json",
        )
    )
    assert (built["documents"], built["bytes"], built["tokens"], built["ids_used"]) == (2, 2, 4, 3)
    assert built["tokenizer"] == {"kind": "bytes"}
    assert built["windows"] is None
    checked = json.loads(run("check", tmp_path / "store", "--json"))
    assert checked == {"store": str(tmp_path / "store"), "digest": built["digest"], "tokens": 4, "ok": True}


SHOWN = """\
source      builtin:shakespeare
documents   38
bytes       4,987,034
tokens      2,117,989   2.355 bytes each   uint16
tokenizer   bpe   1,024 ids, 847 of them used
windows     16,546 of 128 tokens
  held out  64, and 16,482 to train on
epoch       1,030.1 steps; the run takes 0.29 epochs
digest      63ec7e4aaae0cb2e09782e428bb48591960873a5debe1395138abcaf12cb98d4
  source    3e27b04ae319602efebc708c9bde800d89eb549e6ddcf3dea8f5fdfcc8fab969
  tokenizer 1b3d03c848586a93045ae21eeee65e5aca24b1a1f13ba261d19d61eee988bfaf
store       """


def test_show_of_the_preset_a_run_folder_and_the_corpus_agree(tmp_path):
    assert run("show", "tiny").startswith(SHOWN)
    RunFolder.create(tmp_path / "run", experiment_json(read("tiny").experiment))
    assert run("show", tmp_path / "run").startswith(SHOWN)
    plain = json.loads(run("show", "builtin:shakespeare", "--json"))
    assert plain["tokens"] == 2_117_989


def test_check_finds_a_flipped_byte(text, tmp_path):
    out = tmp_path / "store"
    run("build", out, "--from", text, "--tokenizer", "bytes")
    assert run("check", out).startswith(f"{out} is whole: 1 document, 1,061 tokens\n")
    content = bytearray((out / "tokens.bin").read_bytes())
    content[500] ^= 4
    (out / "tokens.bin").write_bytes(bytes(content))
    with pytest.raises(Mismatch, match=r"tokens\.bin is damaged"):
        run("check", out)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["build", "{tmp}", "--from", "{text}"], "exists: a store is only built where nothing is"),
        (["build", "{tmp}/s", "--from", "{tmp}/none.txt"], "does not exist"),
        (["build", "{tmp}/s", "--from", "{tmp}"], "is a folder"),
        (
            ["build", "{tmp}/s", "--from", "{text}"],
            "is too small for experiment.data.tokenizer.vocab_size = 1024",
        ),
        (
            ["build", "{tmp}/s", "--from", "{text}", "--tokenizer", "bytes", "--vocab-size", "300"],
            "does not go with",
        ),
        (["show", "{tmp}/none"], "none does not exist"),
        (
            ["show", "tiny", "--tokenizer", "bytes"],
            "the options say how a file of text is read, but tiny is none",
        ),
        (["check", "{tmp}"], "is no data store"),
    ],
)
def test_refusals(text, tmp_path, arguments, said):
    filled = [argument.format(tmp=tmp_path, text=text) for argument in arguments]
    with pytest.raises(InvalidInput, match=said):
        run(*filled)
    assert [entry.name for entry in tmp_path.iterdir()] == ["own.txt"]
