"""Run folders: made once, by one process, and never touched by the next."""

import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from elinvar.errors import DoesNotFit, InvalidInput, StorageFailed
from elinvar.record import folder as folder_module
from elinvar.record.events import Event
from elinvar.record.folder import RunFolder, new_path
from elinvar.record.lineage import Lineage
from elinvar.spec.read import experiment_json, read


@pytest.fixture(scope="module")
def experiment():
    return read("tiny").experiment


@pytest.fixture(scope="module")
def data(experiment):
    return experiment_json(experiment)


def contents(path):
    return {
        str(p.relative_to(path)): p.read_bytes() if p.is_file() else None
        for p in sorted(Path(path).rglob("*"))
    }


def test_a_created_folder_is_opened_with_the_same_experiment(tmp_path, data, experiment):
    lineage = Lineage(run="/runs/a", step=4, generation="g", experiment_digest="a" * 64)
    made = RunFolder.create(tmp_path / "runs" / "a", data, lineage)
    found = RunFolder.open(tmp_path / "runs" / "a")
    assert found.path == made.path
    assert found.experiment() == experiment
    assert found.lineage() == lineage
    assert RunFolder.create(tmp_path / "b", data).lineage() is None
    assert contents(tmp_path / "b") == {
        "experiment.json": data,
        "ledger": None,
        "generations": None,
        "lock": b"",
    }


def test_a_fresh_folder_reads_as_an_empty_record(tmp_path, data):
    folder = RunFolder.create(tmp_path / "a", data)
    assert folder.attempts() == []
    assert folder.metrics() == folder.events() == folder.ledger() == ([], 0)
    assert folder.generations() == []
    assert folder.holder() is None
    assert folder.is_running is False


@pytest.mark.parametrize("journal", ["attempts_path", "metrics_path", "events_path", "ledger_path"])
def test_a_number_that_any_journal_names_is_taken(tmp_path, data, journal):
    folder = RunFolder.create(tmp_path / "a", data)
    assert folder.next_attempt() == 1
    getattr(folder, journal).write_text('{"attempt": 3, "step": 1}\n{"att')
    assert folder.next_attempt() == 4


def test_an_existing_run_is_refused_and_not_touched(tmp_path, data):
    path = tmp_path / "a"
    RunFolder.create(path, data)
    before = contents(path)
    with pytest.raises(InvalidInput, match="holds a run already") as error:
        RunFolder.create(path, b"other")
    assert f"elinvar resume {path}" in str(error.value)
    assert "--run OTHER" in str(error.value)
    assert contents(path) == before


def test_a_folder_with_other_files_is_refused_and_not_touched(tmp_path, data):
    for name in "abcd":
        (tmp_path / f"{name}.txt").write_text(name)
    before = contents(tmp_path)
    with pytest.raises(InvalidInput, match=r"a\.txt, b\.txt, c\.txt and 1 more"):
        RunFolder.create(tmp_path, data)
    assert contents(tmp_path) == before


def test_an_empty_folder_and_what_a_killed_creation_left_are_accepted(tmp_path, data):
    (tmp_path / "empty").mkdir()
    RunFolder.create(tmp_path / "empty", data)
    left = tmp_path / "left"
    (left / "generations").mkdir(parents=True)
    (left / "lock").write_text("")
    (left / ".experiment.json.00ff00ff.new").write_bytes(data[:30])
    RunFolder.create(left, data)
    assert RunFolder.open(left).path == left


def test_a_file_in_the_way_is_refused(tmp_path, data):
    (tmp_path / "file").write_text("mine")
    for path in (
        tmp_path / "file",
        tmp_path / "file" / "a",
        tmp_path / "file" / "a" / "b",
        tmp_path / ("x" * 300),
    ):
        with pytest.raises(InvalidInput):
            RunFolder.create(path, data)
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    with pytest.raises(InvalidInput):
        RunFolder.create(tmp_path / "dangling", data)
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.skipif(not Path("/sys").is_dir(), reason="needs /sys, where nobody can make a folder")
def test_an_unwritable_place_does_not_fit(data):
    with pytest.raises(DoesNotFit, match="/sys/elinvar-run") as error:
        RunFolder.create(Path("/sys/elinvar-run"), data)
    assert error.value.exit_code == 3


@pytest.mark.parametrize("existing", [False, True])
@pytest.mark.parametrize("at", ["experiment.json", "lineage.json"])
def test_a_full_disk_leaves_nothing_behind(tmp_path, data, monkeypatch, at, existing):
    path = tmp_path / "a"
    if existing:
        path.mkdir()
    real = folder_module.write_whole

    def full(file, content):
        if file.name == at:
            raise OSError(28, "No space left on device")
        real(file, content)

    monkeypatch.setattr(folder_module, "write_whole", full)
    lineage = Lineage(run="r", step=1, generation="g", experiment_digest="a" * 64)
    with pytest.raises(StorageFailed, match="No space left"):
        RunFolder.create(path, data, lineage)
    assert path.exists() == existing
    assert contents(tmp_path) == ({"a": None} if existing else {})


def test_open_refuses_what_is_no_run_folder(tmp_path, data):
    with pytest.raises(InvalidInput, match="no such run folder"):
        RunFolder.open(tmp_path / "none")
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput, match="is a file"):
        RunFolder.open(tmp_path / "file")
    with pytest.raises(InvalidInput, match=r"no experiment\.json"):
        RunFolder.open(tmp_path)
    RunFolder.create(tmp_path / "a", data)
    (tmp_path / "a" / "experiment.json").write_bytes(data[:50])
    with pytest.raises(InvalidInput, match=str(tmp_path / "a")):
        RunFolder.open(tmp_path / "a")
    (tmp_path / "a" / "experiment.json").write_bytes(data.replace(b'"schema":1}', b'"schema":99}'))
    with pytest.raises(InvalidInput, match="99"):
        RunFolder.open(tmp_path / "a")
    (tmp_path / "a" / "experiment.json").write_bytes(data.replace(b'"lr":0.006', b'"lr":0.004'))
    with pytest.raises(InvalidInput, match="names experiment_digest"):
        RunFolder.open(tmp_path / "a")


def create_at(path, data, barrier, results):
    barrier.wait()
    try:
        RunFolder.create(Path(path), data)
        results.put("made")
    except InvalidInput:
        results.put("refused")


@pytest.mark.drill
@pytest.mark.parametrize("existing", [False, True])
def test_of_many_creators_one_gets_the_folder(tmp_path, data, existing):
    context = multiprocessing.get_context("fork")
    for attempt in range(5):
        path = tmp_path / str(attempt)
        if existing:
            path.mkdir()
        barrier, results = context.Barrier(4), context.Queue()
        processes = [context.Process(target=create_at, args=(path, data, barrier, results)) for _ in range(4)]
        for process in processes:
            process.start()
        outcome = sorted(results.get(timeout=20) for _ in processes)
        for process in processes:
            process.join(20)
        assert outcome == ["made", "refused", "refused", "refused"]
        assert RunFolder.open(path).path == path


HOLDER = """
import sys, time
from pathlib import Path
from elinvar.record.folder import RunFolder
folder = RunFolder.open(Path(sys.argv[1]))
lock = folder.lock()
print("locked", flush=True)
time.sleep(60)
"""


@pytest.mark.drill
def test_a_second_process_is_told_who_holds_the_folder_and_a_killed_one_holds_nothing(tmp_path, data):
    folder = RunFolder.create(tmp_path / "a", data)
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder.path)], stdout=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout.readline() == b"locked\n"
            with pytest.raises(
                InvalidInput, match=f"process {process.pid} on {socket.gethostname()}"
            ) as error:
                folder.lock()
            assert error.value.exit_code == 2
            assert folder.is_running is True
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
    assert folder.holder().pid == process.pid
    assert folder.is_running is False
    with folder.lock():
        assert folder.holder().pid == os.getpid()
        assert folder.is_running is True
    assert folder.holder() is None
    assert folder.is_running is False


def test_another_process_of_the_same_id_is_not_the_holder(tmp_path, data):
    folder = RunFolder.create(tmp_path / "a", data)
    with folder.lock():
        file = folder.path / "lock"
        text = file.read_text()
        file.write_text(text.replace(f'"started": "{folder.holder().started}"', '"started": "1"'))
        assert folder.is_running is False
        file.write_text(text.replace(socket.gethostname(), "elsewhere"))
        assert folder.is_running is None


def test_a_reader_never_touches_the_lock(tmp_path, data):
    folder = RunFolder.create(tmp_path / "a", data)
    before = (folder.path / "lock").stat()
    assert folder.is_running is False
    RunFolder.open(folder.path)
    after = (folder.path / "lock").stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


def test_journals_say_which_of_them_were_torn(tmp_path, data):
    folder = RunFolder.create(tmp_path / "a", data)
    with (folder.path / "metrics.jsonl").open("wb") as file:
        file.write(b'{"attempt":1,"st')
    journals = folder.journals()
    assert journals.torn == {"metrics.jsonl": 16}
    journals.events.append(Event(attempt=1, time_s=time.time(), kind="torn_line", data=journals.torn))
    journals.sync()
    journals.close()
    assert folder.metrics() == ([], 1)
    assert folder.events()[0][0].data == {"metrics.jsonl": 16}
    assert folder.ledger_path == folder.path / "ledger" / "steps.jsonl"


def test_new_path_takes_the_first_free_name(tmp_path):
    digest = "0123456789" + "a" * 54
    assert new_path(tmp_path / "runs", "tiny", digest) == tmp_path / "runs" / "tiny-012345"
    (tmp_path / "tiny-012345").mkdir()
    assert new_path(tmp_path, "tiny", digest) == tmp_path / "tiny-012345-2"
    (tmp_path / "tiny-012345-2").symlink_to(tmp_path / "nowhere")
    assert new_path(tmp_path, "tiny", digest) == tmp_path / "tiny-012345-3"
