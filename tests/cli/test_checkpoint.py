"""`elinvar checkpoint list|show|check`: what is there, what it holds, and whether it is what was written."""

import json
import re
import shutil
from pathlib import Path

import jsonschema
import pytest

from drills.program import cli, write_run
from elinvar.record.folder import RunFolder

SCHEMAS = Path(__file__).parents[2] / "docs" / "reference" / "schemas"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    place = tmp_path_factory.mktemp("checkpoint")
    words = ["ranks=2", "sharding=1", "--until", 4, "--quiet"]
    assert cli("train", write_run(place), *words, "--run", place / "run") == 0
    return place / "run"


@pytest.fixture
def folder(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "run")


def answer(capsys, *words, code=0):
    """The JSON that a command prints, with nothing else on stdout."""
    capsys.readouterr()
    assert cli("checkpoint", *words, "--json") == code
    found = json.loads(capsys.readouterr().out)
    jsonschema.validate(found, json.loads((SCHEMAS / f"checkpoint-{words[0]}.json").read_text()))
    return found


def test_list(folder, capsys):
    assert cli("checkpoint", "list", folder) == 0
    generations = RunFolder.open(folder).generations()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["step", "update", "digest", "size", "committed", "name"]
    for line, generation in zip(lines[1:], generations, strict=True):
        assert line.split()[:2] == [str(generation.step), generation.update_digest[:16]]
        assert line.endswith(generation.name)
    found = answer(capsys, "list", folder)
    assert [row["name"] for row in found["generations"]] == [g.name for g in generations]
    assert found["incomplete"] == []
    for row, generation in zip(found["generations"], generations, strict=True):
        assert row["bytes"] == sum(file.stat().st_size for file in generation.path.iterdir())


def test_list_says_what_is_no_generation(folder, capsys):
    half = folder / "generations" / "00000009-0123456789ab-01234567"
    half.mkdir()
    assert cli("checkpoint", "list", folder) == 0
    assert f"not a generation: {half.name}: no commit.json" in capsys.readouterr().out
    assert [row["path"] for row in answer(capsys, "list", folder)["incomplete"]] == [str(half)]


def test_show(folder, capsys):
    newest = RunFolder.open(folder).generations()[-1]
    assert cli("checkpoint", "show", folder) == 0
    text = capsys.readouterr().out
    assert f"digest      {newest.update_digest}" in text
    assert re.search(r"^optimizer_steps +4$", text, re.MULTILINE)
    assert re.search(
        r"^parameter/embedding.weight +float32 +257×16 +[0-9a-f]{16} +rank-0.bin\[0:", text, re.MULTILINE
    )
    assert "rank-1.bin[" in text
    found = answer(capsys, "show", folder, "--at", 2)
    assert found["step"] == found["manifest"]["scalars"]["step"] == 2
    assert found["manifest"]["parent"] is None


def test_show_of_what_is_not_there_lists_what_is(folder, capsys):
    for command in ("show", "check"):
        assert cli("checkpoint", command, folder, "--at", 3) == 2
        said = capsys.readouterr()
        assert said.out == ""
        assert "has no generation at step 3" in said.err
        assert "generations are at step: 2, 4" in said.err


def test_check_reads_every_byte(folder, capsys):
    assert cli("checkpoint", "check", folder) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["sound", "sound"]
    assert answer(capsys, "check", folder)["ok"] is True


@pytest.mark.parametrize("where", [0, -1])
@pytest.mark.parametrize("file", ["rank-0.bin", "rank-1.bin", "manifest.json"])
def test_one_changed_bit_is_found(folder, capsys, file, where):
    generation = RunFolder.open(folder).generations()[0]
    path = generation.path / file
    data = bytearray(path.read_bytes())
    data[where] ^= 4
    path.write_bytes(data)
    assert cli("checkpoint", "check", folder) == 4
    said = capsys.readouterr()
    assert f"damaged {generation.name}" in said.out
    assert f"error: 1 of 2 generations damaged: {generation.name}" in said.err
    found = answer(capsys, "check", folder, code=4)
    assert found["ok"] is False
    assert [bool(problems) for problems in found["checked"].values()] == [True, False]
    assert cli("checkpoint", "check", folder, "--at", 4) == 0


def test_a_damaged_commit_is_found(folder, capsys):
    older, newer = RunFolder.open(folder).generations()
    (newer.path / "commit.json").write_text("{}")
    half = folder / "generations" / "00000009-0123456789ab-01234567"
    half.mkdir()
    assert cli("checkpoint", "check", folder) == 4
    said = capsys.readouterr()
    assert f"damaged {newer.name}\n  commit.json is damaged" in said.out
    assert f"not a generation: {half.name}" in said.out
    assert f"error: 1 of 2 generations damaged: {newer.name}" in said.err
    assert list(answer(capsys, "check", folder, code=4)["checked"]) == [older.name, newer.name]
    assert cli("checkpoint", "check", folder, "--at", 4) == 4
    assert cli("checkpoint", "check", folder, "--at", 2) == 0


def test_a_missing_payload_is_found(folder, capsys):
    generation = RunFolder.open(folder).generations()[-1]
    (generation.path / "rank-1.bin").unlink()
    assert cli("checkpoint", "check", folder) == 4
    assert "rank-1.bin" in capsys.readouterr().out


def test_a_run_without_generations(folder, capsys):
    shutil.rmtree(folder / "generations")
    for command in ("list", "check"):
        assert cli("checkpoint", command, folder) == 0
        assert capsys.readouterr().out == "no generation yet\n"
    assert cli("checkpoint", "show", folder) == 2
    assert "generations are at step: none" in capsys.readouterr().err


def test_no_run_folder_is_refused(tmp_path, capsys):
    for command in ("list", "show", "check"):
        assert cli("checkpoint", command, tmp_path / "nowhere") == 2
        assert "no such run folder" in capsys.readouterr().err
