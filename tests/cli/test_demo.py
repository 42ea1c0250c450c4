"""`elinvar demo`: train, verify that run, name what can be done next. Here with a run of a few steps."""

import pytest

from drills.program import cli, write_run
from elinvar.cli import demo
from elinvar.record.folder import RunFolder
from elinvar.record.proof import read_proof
from elinvar.spec.read import read
from elinvar.verify import case as cases


@pytest.fixture
def small(tmp_path, monkeypatch):
    """The demo of a small experiment of two steps, compared under two executions."""
    run_file = write_run(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "read", lambda _: read(run_file, ["steps=2"]))
    monkeypatch.setattr(demo, "STEPS", 2)
    monkeypatch.setattr(cases, "CONTRASTS", ())
    two = (
        cases.Case(name="1", execution=cases.execution_of(1)),
        cases.Case(name="2", execution=cases.execution_of(2)),
    )
    monkeypatch.setattr(cases, "default_cases", lambda *_: two)
    return tmp_path


def test_it_trains_proves_and_says_what_next(small, capsys):
    assert cli("demo") == 0
    said = capsys.readouterr()
    [folder] = (small / "runs").iterdir()
    lines = said.out.splitlines()
    assert lines[-2:] == [
        f"report  {folder.relative_to(small)}/report.html",
        f'sample  elinvar sample {folder.relative_to(small)} "The "',
    ]
    assert "every claim holds: same bits over 3 cases" in lines
    assert f"$ elinvar train tiny --run {folder.relative_to(small)}" in said.err
    assert f"$ elinvar verify {folder.relative_to(small)}" in said.err
    assert RunFolder.open(folder).attempts()[-1].end.reason == "completed"
    assert read_proof(folder / "proof.json").ok
    assert (folder / "report.html").stat().st_size > 10_000


def test_a_claim_that_fails_is_a_mismatch(small, capsys, monkeypatch):
    from elinvar.verify import drill

    monkeypatch.setattr(drill, "first_difference", lambda *_: 1)
    assert cli("demo") == 4
    assert "cases are not what was claimed" in capsys.readouterr().err
