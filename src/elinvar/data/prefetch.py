"""The microbatches of a rank, made in its own process or ahead of time by worker processes.

Nouns: `microbatches`, the window (tasks in flight), the worker. The order of delivery is the order
of the tasks, whoever is faster; the microbatches are those of `Feed.training` bit for bit. With
workers, at most `prefetch_bytes` of microbatches are in flight, made or in the making, but always
one. A worker that dies stops the run with its name; closing the iterator ends all of them, and so
does the end of the parent, even by SIGKILL.

Workers are started afresh (spawn), never forked, because threads do not survive a fork. They end with
the thread that started them: iterate in a thread that lives as long as the iteration.
"""

import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.util import Finalize
from queue import SimpleQueue
from threading import Thread
from typing import final

import numpy as np

from elinvar.data.batch import Microbatch
from elinvar.data.cursor import Cursor
from elinvar.data.feed import Feed, coordinates
from elinvar.data.worker import FOR_THE_PARENT, TASK, serve
from elinvar.errors import ElinvarError, RunFailed

MAX_TASKS_PER_WORKER = 1024
"""So that the tasks sent always fit into a pipe (64 KiB) and sending them never blocks."""

_JOIN_S = 5.0


def microbatches(
    feed: Feed,
    leaves: Sequence[int],
    cursor: Cursor,
    *,
    workers: int,
    prefetch_bytes: int,
    until_step: int,
) -> Generator[Microbatch, None, None]:
    """Yield the microbatches of `leaves` from the cursor's step to `until_step` (included), step by step.

    Raises Mismatch or InvalidInput at once where the cursor is of another data set or inside a
    step, RunFailed where a worker dies. Closing the iterator ends the workers.
    """
    tasks = coordinates(feed, leaves, cursor, until_step)
    if workers == 0:
        return (feed.training(step, leaf) for step, leaf in tasks)
    return _prefetched(feed, tasks, workers, window(feed, workers, prefetch_bytes))


def window(feed: Feed, workers: int, prefetch_bytes: int) -> int:
    """How many microbatches may be in flight: what fits into the budget, at least one."""
    batch = feed.batch
    size = batch.sequences_per_microbatch * (batch.tokens_per_sequence + 1) * np.dtype(np.int64).itemsize
    return min(max(prefetch_bytes // size, 1), workers * MAX_TASKS_PER_WORKER)


def _prefetched(
    feed: Feed, tasks: Iterator[tuple[int, int]], num_workers: int, max_in_flight: int
) -> Generator[Microbatch, None, None]:
    pool: list[_Worker] = []
    in_flight: deque[_Worker] = deque()
    try:
        pool.extend(_Worker(feed, number) for number in range(min(num_workers, max_in_flight)))
        for number, task in enumerate(tasks):
            if len(in_flight) == max_in_flight:
                yield in_flight.popleft().result()
            worker = pool[number % len(pool)]
            worker.submit(task)
            in_flight.append(worker)
        while in_flight:
            yield in_flight.popleft().result()
    finally:
        for worker in pool:
            worker.stop()
        for worker in pool:
            worker.join()


@final
class _Worker:
    """A worker process, and the thread that takes its results off the pipe so that it never waits."""

    def __init__(self, feed: Feed, number: int) -> None:
        self._number = number
        context = multiprocessing.get_context("spawn")
        task_source, self._tasks = context.Pipe(duplex=False)
        self._results, result_sink = context.Pipe(duplex=False)
        arguments = (*feed.recipe, os.getpid(), task_source, result_sink)
        self._process = context.Process(
            target=serve, args=arguments, name=f"elinvar-input-{number}", daemon=True
        )
        # A Ctrl-C or a stop must not reach the worker before it ignores it: it inherits the blocked
        # signals. The tracker's own start would unblock them, so that comes first.
        resource_tracker.ensure_running()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, FOR_THE_PARENT)
        try:
            self._process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        # At the end of this process Python asks such a child to terminate, which it does not hear, and
        # waits for it: this comes before that.
        self._at_exit = Finalize(self, _kill, args=(self._process,), exitpriority=1)
        task_source.close()
        result_sink.close()
        self._ready: SimpleQueue[Microbatch | ElinvarError | None] = SimpleQueue()
        self._reader = Thread(
            target=_drain, args=(self._results, self._ready), name=f"elinvar-input-{number}", daemon=True
        )
        self._reader.start()

    def submit(self, task: tuple[int, int]) -> None:
        """Ask for a microbatch; a dead worker shows when its result is due."""
        try:
            self._tasks.send_bytes(TASK.pack(*task))
        except OSError:
            return

    def result(self) -> Microbatch:
        """The next microbatch of this worker. Raises what the worker raised, RunFailed where it died."""
        answer = self._ready.get()
        if isinstance(answer, ElinvarError):
            raise answer
        if answer is None:
            self._process.join(_JOIN_S)
            raise RunFailed(
                f"input worker {self._number} (process {self._process.pid}) {_how_it_ended(self._process.exitcode)}",
                [
                    "nothing of the run is lost: its workers hold no state",
                    "if memory ran out: fewer execution.input.workers, or less execution.input.prefetch_bytes",
                ],
            )
        return answer

    def stop(self) -> None:
        """End the process; it has nothing to save, and it hears no other signal."""
        self._at_exit()

    def join(self) -> None:
        """Wait until process and thread are gone."""
        self._process.join()
        self._reader.join()
        self._tasks.close()
        self._results.close()
        self._process.close()


def _kill(process: BaseProcess) -> None:
    process.kill()


def _drain(results: Connection, ready: "SimpleQueue[Microbatch | ElinvarError | None]") -> None:
    """Move results from the pipe to the queue until the worker's end is closed; None says that it is."""
    try:
        while True:
            ready.put(results.recv())
    except (EOFError, OSError):
        ready.put(None)


def _how_it_ended(exit_code: int | None) -> str:
    if exit_code is None:
        return "closed its pipe but did not end"
    if exit_code >= 0:
        return f"ended with exit code {exit_code}"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = "unknown"
    return f"was killed by signal {-exit_code} ({name})"
