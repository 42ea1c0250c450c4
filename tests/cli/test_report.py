"""`elinvar report`: writes one file, whole or not at all, and says where."""

import importlib.util
import json
from pathlib import Path

import pytest

from elinvar.cli.main import run

RUNS = Path(__file__).parents[1] / "report" / "runs.py"


@pytest.fixture(scope="module")
def eventful(tmp_path_factory):
    spec = importlib.util.spec_from_file_location("elinvar_test_runs_of_cli", RUNS)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.eventful_folder(tmp_path_factory.mktemp("runs") / "a").path


def contents(path):
    return {p: p.read_bytes() for p in path.rglob("*") if p.is_file() and p.name != "report.html"}


def test_it_writes_the_page_into_the_folder_and_changes_nothing_else(eventful, capsys):
    before = contents(eventful)
    assert run(["report", str(eventful)]) == 0
    assert capsys.readouterr().out == f"{eventful / 'report.html'}\n"
    first = (eventful / "report.html").read_bytes()
    assert first.startswith(b"<!doctype html>")
    assert run(["report", str(eventful)]) == 0
    assert (eventful / "report.html").read_bytes() == first
    assert contents(eventful) == before


def test_it_writes_where_it_is_told(eventful, tmp_path, capsys):
    assert run(["report", str(eventful), "--output", str(tmp_path / "x.html"), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["path"] == str(tmp_path / "x.html")
    assert said["bytes"] == (tmp_path / "x.html").stat().st_size
    assert (said["state"], said["step"], said["steps"], said["notices"]) == ("completed", 200, 200, [])
    assert [p.name for p in tmp_path.iterdir()] == ["x.html"]


def test_bad_places_are_one_clear_error(eventful, tmp_path, capsys):
    assert run(["report", str(tmp_path / "none")]) == 2
    assert "no such run folder" in capsys.readouterr().err
    assert run(["report", str(tmp_path)]) == 2
    assert "no run folder" in capsys.readouterr().err
    (tmp_path / "file").write_text("")
    assert run(["report", str(eventful), "--output", str(tmp_path / "file" / "x.html")]) == 2
    assert str(tmp_path / "file" / "x.html") in capsys.readouterr().err
    assert run(["report", str(eventful), "--output", str(tmp_path / "none" / "x.html")]) == 2
    assert "none" in capsys.readouterr().err
    assert run(["report", str(eventful), "--output", "/sys/x.html"]) == 3
    assert "/sys/x.html" in capsys.readouterr().err
