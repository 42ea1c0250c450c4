import json

import pytest

from elinvar.cli.main import run
from elinvar.spec.read import read


def refused(capsys, *arguments):
    assert run(["init", *arguments]) == 2
    return capsys.readouterr().err


@pytest.mark.parametrize("preset", ["tiny", "small"])
def test_the_file_written_is_the_preset(capsys, tmp_path, monkeypatch, preset):
    monkeypatch.chdir(tmp_path)
    assert run(["init", "--preset", preset]) == 0
    assert "elinvar train run.toml" in capsys.readouterr().out
    assert read("run.toml").experiment == read(preset).experiment
    assert (tmp_path / "run.toml").read_text().startswith("#")


def test_nothing_is_overwritten(capsys, tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text("mine")
    assert "exists already; nothing was changed" in refused(capsys, str(path))
    assert path.read_text() == "mine"
    link = tmp_path / "link.toml"
    link.symlink_to(tmp_path / "nowhere.toml")
    assert "exists already" in refused(capsys, str(link))
    assert not (tmp_path / "nowhere.toml").exists()


def test_a_folder_gets_run_toml(capsys, tmp_path):
    assert run(["init", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"path": str(tmp_path / "run.toml"), "preset": "tiny"}
    assert (tmp_path / "run.toml").exists()


def test_places_and_presets_that_are_none_are_refused(capsys, tmp_path):
    assert "the nearest is small" in refused(capsys, str(tmp_path / "a.toml"), "--preset", "smal")
    assert "has no ending .toml" in refused(capsys, str(tmp_path / "mine"))
    assert "does not exist" in refused(capsys, str(tmp_path / "no" / "run.toml"))
    assert list(tmp_path.iterdir()) == []
