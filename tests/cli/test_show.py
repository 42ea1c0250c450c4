import json
import tomllib

import msgspec
import pytest

from elinvar.cli.main import run
from elinvar.record.attempt import AttemptStart
from elinvar.record.folder import RunFolder
from elinvar.spec.canonical import experiment_digest
from elinvar.spec.execution import Execution
from elinvar.spec.read import experiment_json, read
from elinvar.spec.schema import run_file_schema


def shown(capsys, *arguments, code=0):
    assert run(["show", *arguments]) == code
    out, err = capsys.readouterr()
    return out if code == 0 else err


def attempt(number, **execution):
    return AttemptStart(
        attempt=number,
        time_s=0.0,
        from_step=0,
        execution=msgspec.to_builtins(Execution(**execution)),
        machine={},
        fingerprint={"device": "cpu"},
        versions={},
    )


@pytest.fixture
def folder(tmp_path):
    """A run folder of tiny with two attempts."""
    made = RunFolder.create(tmp_path / "run", experiment_json(read("tiny").experiment))
    journals = made.journals()
    journals.attempts.append(attempt(1, ranks=2))
    journals.attempts.append(attempt(2, ranks=3))
    journals.close()
    return made.path


def test_what_is_shown_is_a_run_file_with_the_same_digest(capsys, tmp_path):
    text = shown(capsys, "tiny", "lr=0.5")
    (tmp_path / "saved.toml").write_text(text)
    saved, asked = read(str(tmp_path / "saved.toml")), read("tiny", ["lr=0.5"])
    assert saved.experiment == asked.experiment
    assert f"# experiment_digest {experiment_digest(asked.experiment)}" in text


def test_json_holds_values_digests_and_origins(capsys):
    tree = json.loads(shown(capsys, "tiny", "ranks=3", "--json"))
    reading = read("tiny", ["ranks=3"])
    assert tree["experiment"] == msgspec.to_builtins(reading.experiment)
    assert tree["execution"] == msgspec.to_builtins(reading.execution)
    assert tree["experiment_digest"] == experiment_digest(reading.experiment)
    assert tree["origins"]["execution.ranks"] == "override ranks=3"


def test_origin_names_who_set_a_value(capsys):
    text = shown(capsys, "tiny", "--origin", "ranks=3")
    assert "override ranks=3" in text
    assert "# default" in text
    assert "preset tiny:" in text


def test_notes_go_to_stderr(capsys):
    assert run(["show", "tiny", "schedule.kind=constant"]) == 0
    out, err = capsys.readouterr()
    assert err.startswith("note   experiment.schedule.final_fraction = 0.1")
    tomllib.loads(out)


def test_a_folder_shows_what_it_recorded(capsys, folder):
    tree = json.loads(shown(capsys, str(folder), "--json"))
    assert tree["experiment"] == msgspec.to_builtins(read("tiny").experiment)
    assert tree["execution"]["ranks"] == 3
    assert tree["origins"] is None


def test_a_folder_has_no_origins_and_takes_no_overrides(capsys, folder):
    assert "without --origin" in shown(capsys, str(folder), "--origin", code=2)
    assert "cannot be overridden" in shown(capsys, str(folder), "lr=1", code=2)


def test_a_folder_that_is_no_run_is_refused(capsys, tmp_path):
    assert "no run folder" in shown(capsys, str(tmp_path), code=2)


def test_the_schema_is_printed(capsys):
    assert json.loads(shown(capsys, "--schema")) == run_file_schema()
