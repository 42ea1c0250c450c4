"""Input workers: the same microbatches bit for bit, a budget of bytes, and no orphan."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import pytest

from elinvar.data.cursor import Cursor
from elinvar.data.feed import Feed
from elinvar.data.prefetch import microbatches, window
from elinvar.data.store import open_store
from elinvar.errors import InvalidInput, Mismatch, RunFailed
from elinvar.record.ledger import ids_digest

ANY = 10**9


def bits(microbatch):
    return (
        microbatch.step,
        microbatch.index,
        microbatch.tokens_BT1.dtype.str,
        microbatch.tokens_BT1.tobytes(),
        microbatch.occurrences,
        microbatch.seed,
    )


def collect(feed, leaves, cursor, workers=0, prefetch_bytes=ANY, until_step=9):
    return [
        bits(microbatch)
        for microbatch in microbatches(
            feed, leaves, cursor, workers=workers, prefetch_bytes=prefetch_bytes, until_step=until_step
        )
    ]


def test_microbatches_come_step_by_step_from_the_cursor(feed):
    got = collect(feed, [0, 2], feed.cursor_after(3), until_step=6)
    assert got == [bits(feed.training(step, leaf)) for step in (4, 5, 6) for leaf in (0, 2)]
    assert collect(feed, [0], feed.cursor_after(6), until_step=6) == []
    assert threading.active_count() == 1


@pytest.mark.parametrize(("workers", "prefetch_bytes"), [(1, 0), (3, 700)])
def test_workers_change_nothing(feed, workers, prefetch_bytes):
    expected = collect(feed, [2, 0], feed.cursor_after(2), until_step=40)
    assert collect(feed, [2, 0], feed.cursor_after(2), workers, prefetch_bytes, until_step=40) == expected
    assert multiprocessing.active_children() == []
    assert threading.active_count() == 1


def test_any_owners_together_consume_what_one_does(feed):
    one = {key[:2]: key for key in collect(feed, range(3), feed.start())}
    for owners in ([[0, 1], [2]], [[0], [1], [2]], [[2, 0], [1], []]):
        parts = [key for leaves in owners for key in collect(feed, leaves, feed.start())]
        assert {key[:2]: key for key in parts} == one
        assert len(parts) == len(one)


def test_killing_and_resuming_anywhere_repeats_and_loses_nothing(feed):
    whole = collect(feed, range(3), feed.start(), until_step=60)
    for stops in ((1, 60), (7, 8, 31, 60)):
        parts, done = [], 0
        for stop in stops:
            parts += collect(feed, range(3), feed.cursor_after(done), until_step=stop)
            done = stop
        assert parts == whole
    assert ids_digest(o.sample.index for key in whole for o in key[4]) == ids_digest(
        feed.order.indices(0, 360).tolist()
    )


def test_a_wrong_cursor_is_refused_before_anything_starts(feed):
    for workers in (0, 2):
        with pytest.raises(Mismatch, match="not those that the run has learned from"):
            microbatches(
                feed,
                [0],
                Cursor(dataset="0" * 64, position=0),
                workers=workers,
                prefetch_bytes=0,
                until_step=5,
            )
        with pytest.raises(InvalidInput, match="inside a step"):
            microbatches(
                feed,
                [0],
                Cursor(dataset=feed.store.digest, position=1),
                workers=workers,
                prefetch_bytes=0,
                until_step=5,
            )


def test_the_window_is_what_fits_into_the_budget_and_at_least_one(feed):
    size = feed.training(1, 0).num_storage_bytes
    assert size == 2 * 17 * 8
    for prefetch_bytes, expected in ((0, 1), (size - 1, 1), (size, 1), (3 * size, 3), (4 * size - 1, 3)):
        assert window(feed, 4, prefetch_bytes) == expected
    assert window(feed, 2, 10**12) == 2048


def test_no_more_is_in_flight_than_the_window(feed, monkeypatch):
    from elinvar.data import prefetch

    submitted, most = 0, 0
    real = prefetch._Worker.submit

    def counted(worker, task):
        nonlocal submitted
        submitted += 1
        real(worker, task)

    monkeypatch.setattr(prefetch._Worker, "submit", counted)
    size = feed.training(1, 0).num_storage_bytes
    taken = 0
    for _ in microbatches(feed, [0, 1], feed.start(), workers=2, prefetch_bytes=3 * size, until_step=20):
        most = max(most, submitted - taken)
        taken += 1
    assert (taken, submitted, most) == (40, 40, 3)


def test_a_killed_worker_stops_the_run_by_name(feed):
    iterator = microbatches(feed, [0], feed.start(), workers=2, prefetch_bytes=5000, until_step=100_000)
    next(iterator)
    victim = next(child for child in multiprocessing.active_children() if child.name == "elinvar-input-1")
    os.kill(victim.pid, signal.SIGKILL)
    with pytest.raises(
        RunFailed, match=rf"input worker 1 \(process {victim.pid}\) was killed by signal 9 \(SIGKILL\)"
    ):
        for _ in iterator:
            pass
    assert multiprocessing.active_children() == []


def test_the_error_of_a_worker_is_the_error_of_the_run(data, feed, tmp_path):
    feed = Feed(open_store(data, tmp_path / "own"), feed.recipe[1])
    (feed.store.path / "tokens.bin").write_bytes(b"")
    with pytest.raises(Mismatch, match=r"tokens\.bin holds 0 bytes"):
        collect(feed, [0], feed.start(), workers=1)


def test_a_closed_iterator_leaves_no_process_and_no_thread(feed):
    iterator = microbatches(feed, [0], feed.start(), workers=2, prefetch_bytes=ANY, until_step=100_000)
    next(iterator)
    children = multiprocessing.active_children()
    assert len(children) == 2
    if sys.platform == "linux":
        status = Path(f"/proc/{children[0].pid}/status").read_text()
        fields = dict(line.split(":", 1) for line in status.splitlines())
        assert int(fields["VmRSS"].split()[0]) < 80 * 1024  # KiB: no PyTorch, no tokenizers
    iterator.close()
    assert multiprocessing.active_children() == []
    assert threading.active_count() == 1


SCRIPT = """
import sys, time
from pathlib import Path
import msgspec
from elinvar.data.feed import Feed
from elinvar.data.prefetch import microbatches
from elinvar.data.store import Store
from elinvar.spec.experiment import Experiment

def iterate():
    feed = Feed(Store.open(Path(sys.argv[1])), msgspec.json.decode(sys.argv[2], type=Experiment))
    iterator = microbatches(feed, [0], feed.start(), workers=2, prefetch_bytes=10**6, until_step=10**6)
    next(iterator)
    import multiprocessing
    assert "torch" not in sys.modules
    print(*[child.pid for child in multiprocessing.active_children()], flush=True)
    return iterator

{main}
"""

PLAIN = """
if __name__ == "__main__":
    kept = iterate()
    time.sleep(60)
"""

IN_A_FORKSERVER_CHILD = """
def rank():
    kept = iterate()
    time.sleep(60)

if __name__ == "__main__":
    import multiprocessing
    child = multiprocessing.get_context("forkserver").Process(target=rank)
    child.start()
    child.join()
"""


def stat_fields(pid):
    """State, parent, …: what follows the name, which may hold blanks."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return stat_fields(pid)[0] != "Z"


def wait_until_gone(pids, patience_s=10):
    deadline = time.monotonic() + patience_s
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return [pid for pid in pids if alive(pid)]


def started(feed, tmp_path, main):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.replace("{main}", main))
    experiment = msgspec.json.encode(feed.recipe[1]).decode()
    process = subprocess.Popen(
        [sys.executable, str(script), str(feed.store.path), experiment],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    pids = [int(word) for word in process.stdout.readline().split()]
    assert len(pids) == 2, process.stderr.read()
    return process, pids


@pytest.mark.drill
@pytest.mark.skipif(sys.platform != "linux", reason="the system ends workers with their parent on Linux only")
def test_workers_die_with_a_killed_parent(feed, tmp_path):
    process, pids = started(feed, tmp_path, PLAIN)
    with process:
        process.kill()
    assert wait_until_gone(pids) == []


@pytest.mark.drill
def test_workers_live_through_a_ctrl_c_and_stops_that_the_parent_answers(feed, tmp_path):
    process, pids = started(feed, tmp_path, PLAIN)
    with process:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            for pid in pids:
                os.kill(pid, number)
        time.sleep(0.2)
        assert all(map(alive, pids))
        os.killpg(process.pid, signal.SIGINT)
        errors = process.stderr.read()
    assert errors.count("Traceback") == 1  # the parent's own
    assert wait_until_gone(pids) == []


@pytest.mark.drill
def test_workers_start_in_a_child_of_a_forkserver_and_end_with_it(feed, tmp_path):
    process, pids = started(feed, tmp_path, IN_A_FORKSERVER_CHILD)
    with process:
        rank = int(stat_fields(pids[0])[1])
        assert rank != process.pid
        os.kill(rank, signal.SIGKILL)
        assert wait_until_gone(pids) == []
        process.kill()
