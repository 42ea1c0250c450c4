"""Disks that are full or may not be written, for real: file systems of our own in a private mount namespace."""

import json
import os
import subprocess
import sys

import pytest

from drills.program import ENVIRONMENT, Reference, left, write_run

SPACE = "import sys; from drills.disk_work import main; main(*sys.argv[1:])"


def can_mount():
    probe = ["unshare", "-m", "sh", "-c", "mount -t tmpfs none /mnt"]
    try:
        return subprocess.run(probe, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


pytestmark = [
    pytest.mark.drill,
    pytest.mark.skipif(
        not ("CI" in os.environ and os.geteuid() == 0) and not can_mount(),
        reason="mounting in a private namespace is not permitted here",
    ),
]


@pytest.fixture(scope="module")
def run_file(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("disk"))


@pytest.fixture(scope="module")
def reference(run_file, tmp_path_factory):
    return Reference(run_file, tmp_path_factory.mktemp("reference") / "run")


def inside(tmp_path, name, *arguments):
    """What `disk_work.<name>` says after it ran with a file system of its own at `tmp_path/disk`."""
    (tmp_path / "disk").mkdir()
    process = subprocess.Popen(
        ["unshare", "-m", sys.executable, "-c", SPACE, name, str(tmp_path / "disk"), *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
        start_new_session=True,
    )
    try:
        out, errors = process.communicate(timeout=120)
    finally:
        assert left(process.pid) == []
    assert process.returncode == 0, errors
    return json.loads(out)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_full_disk_fails_the_run_and_loses_nothing(tmp_path, run_file, reference, ranks):
    """Room for rows but not for a generation, then for few rows, for nothing at all, for everything again."""
    found = inside(tmp_path, "fill", run_file, ranks)
    words = {
        "no generation": "the checkpoint was not written: ",
        "no row": ".jsonl: ",
        "nothing": "cannot write ",
    }
    for name, word in words.items():
        code, lines, generations, incomplete, sound = found[name]
        assert code == 1, lines
        assert lines[-1].strip() == "resumable from 4"
        assert lines[-2].strip().startswith("to go on: elinvar resume ")
        [error] = [line for line in lines if line.startswith("error: ")]
        assert word in error, name
        assert "No space left on device" in error or "bytes of a row were taken" in error
        assert not any("Traceback" in line for line in lines)
        assert generations == [2, 4]
        assert incomplete == []
        assert sound
    code, lines, generations, _, sound = found["room again"]
    assert code == 0, lines
    assert generations[-1] == 8
    assert sound
    taken = {int(step): digest for step, digest in found["digests"].items()}
    assert taken == reference(max(taken))  # rows of the lost steps stay, and were right too


def test_a_folder_that_may_not_be_written_is_refused(tmp_path, run_file):
    found = inside(tmp_path, "read_only", run_file)
    for words, (code, lines) in found["ends"].items():
        assert code == 3, (words, lines)
        assert any("Read-only file system" in line for line in lines), lines
        assert not any("Traceback" in line for line in lines)
    assert found["unchanged"]


def test_a_new_run_on_a_full_disk_leaves_nothing(tmp_path, run_file):
    code, lines, names = inside(tmp_path, "begin_full", run_file)["end"]
    assert code == 1, lines
    assert any("No space left on device" in line for line in lines), lines
    assert names == ["ballast"]
