"""`elinvar doctor`: what it needs, what it only mentions, and its exit code."""

import fcntl

import msgspec
import pytest
from click.testing import CliRunner

from elinvar.cli import doctor
from elinvar.cli.doctor import Examination, command


def checks(examination):
    return {check.name: check for check in examination.checks}


def test_this_machine_is_ready_and_its_fingerprint_is_that_of_a_run(tmp_path, monkeypatch):
    from elinvar.numerics.fingerprint import fingerprint, fingerprint_digest
    from elinvar.spec.numerics import Numerics

    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(command, ["--json"], catch_exceptions=False)
    assert result.exit_code == 0
    examination = msgspec.json.decode(result.stdout, type=Examination)
    assert examination.ok
    assert examination.fingerprint_digest == fingerprint_digest(
        fingerprint(Numerics(), examination.fingerprint["device"])
    )
    assert list(tmp_path.iterdir()) == []
    assert doctor.kept_fingerprint() == examination.fingerprint


def test_the_page_ends_with_the_verdict(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(command, [], catch_exceptions=False)
    assert result.output.splitlines()[-1] == "ready"
    assert "gloo            ranks can exchange data" in result.output


def test_a_missing_package_is_exit_3(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(doctor, "PACKAGES", ("torch", "no-such-package-here"))
    result = CliRunner().invoke(command, [], catch_exceptions=False)
    assert result.exit_code == 3
    assert result.output.splitlines()[-1] == "not ready: no-such-package-here"
    assert "MISSING  no-such-package-here" in result.output


def test_a_missing_browser_only_shows(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "BROWSERS", ("no-such-browser",))
    examination = doctor.examine(tmp_path)
    assert examination.ok
    assert not checks(examination)["browser"].ok
    assert any(line.startswith("absent   browser") for line in doctor.lines(examination))


def test_a_disk_that_grants_one_lock_twice_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)
    found = checks(doctor.examine(tmp_path))["writing"]
    assert not found.ok
    assert "two processes can hold one lock" in found.found


def test_a_folder_that_may_not_be_written_is_refused(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(doctor.tempfile, "TemporaryDirectory", refuse)
    found = checks(doctor.examine(tmp_path))["writing"]
    assert not found.ok
    assert "Permission denied" in found.found


@pytest.mark.parametrize("free", [10, 2**40])
def test_little_disk_is_a_hint_and_no_failure(tmp_path, monkeypatch, free):
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: type("Usage", (), {"free": free}))
    examination = doctor.examine(tmp_path)
    assert checks(examination)["disk"].ok == (free > 2**30)
    assert examination.ok


def test_a_cache_that_cannot_be_written_is_refused(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("ELINVAR_CACHE", str(tmp_path / "file" / "below"))
    assert doctor.kept_fingerprint() is None
    found = doctor.examine(tmp_path)
    assert not checks(found)["cache"].ok
    assert not found.ok
