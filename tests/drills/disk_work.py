"""What `test_disk` does in a private mount namespace: `main(name, place, …)` prints one JSON document."""

import contextlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path

from drills.program import cli, digests
from elinvar.checkpoint.check import check_generation
from elinvar.record.folder import RunFolder
from elinvar.record.manifest import list_incomplete


def main(name, place, *arguments):
    answer = {"fill": fill, "read_only": read_only, "begin_full": begin_full}[name](Path(place), *arguments)
    sys.stdout.write(json.dumps(answer))


def mount(*words):
    subprocess.run(["mount", *map(str, words)], check=True)


def said(*words):
    """(exit code, lines of stderr) of a command in this process."""
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors):
        code = cli(*words)
    return code, errors.getvalue().rstrip("\n").split("\n")


def ballast(place, leave_bytes):
    """Fill the file system of `place` until about `leave_bytes` are free."""
    file = place / "ballast"
    free = os.statvfs(place).f_bavail * os.statvfs(place).f_frsize
    size = (file.stat().st_size if file.exists() else 0) + free - leave_bytes
    with file.open("ab") as out, contextlib.suppress(OSError):
        while out.tell() < size:
            out.write(bytes(min(4096, size - out.tell())))
            out.flush()


def state(folder):
    run = RunFolder.open(folder)
    generations = run.generations()
    return (
        [generation.step for generation in generations],
        [str(entry) for entry in list_incomplete(run.generations_path)],
        all(check_generation(generation) == [] for generation in generations),
    )


def fill(place, run_file, ranks):
    mount("-t", "tmpfs", "-o", "size=4m", "none", place)
    folder = place / "run"
    words = ["resume", folder, "checkpoint.every=2", "--until", 8]
    rows = ["resume", folder, "checkpoint.every=0", "--until", 500]
    code, lines = said("train", run_file, "--run", folder, f"ranks={ranks}", "--until", 4)
    assert code == 0, lines
    found = {}
    for name, leave_bytes, command in (
        ("no generation", 60_000, words),
        ("no row", 20_000, rows),
        ("nothing", 0, words),
    ):
        ballast(place, leave_bytes)
        found[name] = (*said(*command), *state(folder))
    (place / "ballast").unlink()
    found["room again"] = (*said(*words), *state(folder))
    return {**found, "digests": digests(folder)}


def read_only(place, run_file):
    folder = place / "run"
    code, lines = said("train", run_file, "--run", folder, "--until", 2)
    assert code == 0, lines
    mount("--bind", place, place)
    mount("-o", "remount,bind,ro", place)
    before = {path: path.stat().st_mtime_ns for path in sorted(place.rglob("*"))}
    ends = {
        "new": said("train", run_file, "--run", place / "new"),
        "resume": said("resume", folder),
        "train": said("train", run_file, "--run", folder),
        "fork": said("train", run_file, "--run", place / "fork", "--fork", f"{folder}@2"),
    }
    after = {path: path.stat().st_mtime_ns for path in sorted(place.rglob("*"))}
    return {"ends": ends, "unchanged": before == after}


def begin_full(place, run_file):
    mount("-t", "tmpfs", "-o", "size=64k", "none", place)
    ballast(place, 0)
    end = said("train", run_file, "--run", place / "run")
    return {"end": (*end, sorted(path.name for path in place.iterdir()))}
