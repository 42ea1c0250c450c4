"""Several ranks on this machine, on the process machinery of `torch.distributed.elastic`.

Noun: the parent, which holds the store where ranks meet, hears signals, and asks for a stop. It
leaves no process behind: workers die with it, and it ends them when one of them fails.
"""

import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import msgspec
from torch.distributed import Store, TCPStore
from torch.distributed.elastic.multiprocessing import (
    DefaultLogsSpecs,
    MultiprocessContext,
    PContext,
    start_processes,
)

from elinvar import errors
from elinvar.errors import ElinvarError, RunFailed
from elinvar.run.early import STOPS, Quit, StoppedEarly, was_stopped
from elinvar.run.forkserver import warm_up
from elinvar.run.job import Job, Outcome
from elinvar.run.progress import say
from elinvar.run.stop import STOP_KEY, Request, asked, hear, lost, saved_step
from elinvar.run.worker import ERROR_KEY, Failure, work

POLL_S = 0.02

Entry = Callable[[Job, int, int, str, int], Outcome]
"""What runs in a launched process: (job, rank, ranks, host and port of the parent's store)."""


def launch(job: Job, entry: Entry = work, *, saves: bool = True) -> Outcome:
    """Run `job` on `job.execution.ranks` processes and wait for their end.

    `entry` is what each process runs, a function of a module. Without `saves` a request to stop
    ends the ranks at once: what they compute is nobody's. Raises what a rank raised (our own errors
    as they are), RunFailed where a rank died, Quit, and StoppedEarly where a stop saves nothing.
    """
    warm_up()
    # What elastic logs about a failed worker is told by our own error, once and in plain words.
    for name in ("torch.distributed.elastic", "torch.multiprocessing.spawn"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    size = job.execution.ranks
    assert isinstance(size, int)
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    # Elastic's own handlers would end the ranks in the middle of a step; ours are there before them.
    os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = ""
    environment = {"GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", _loopback())}
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, *STOPS)}
    ears = _Ears(store, job, saves=saves)
    context = start_processes(
        name="elinvar",
        entrypoint=entry,
        args={rank: (job, rank, size, "127.0.0.1", store.port) for rank in range(size)},
        envs=dict.fromkeys(range(size), environment),
        logs_specs=DefaultLogsSpecs(log_dir=os.devnull),
        start_method="forkserver",
    )
    try:
        while (result := context.wait(timeout=0)) is None:
            ears.pass_on()
            time.sleep(POLL_S)
        if result.failures:
            rank, first = next(iter(result.failures.items()))
            raise _failure(store, rank, first.exitcode, _killed(context))
        outcome = result.return_values[0]
        assert isinstance(outcome, Outcome)
        return outcome
    finally:
        context.close(signal.SIGKILL)
        for number, handler in handlers.items():
            signal.signal(number, handler)


class _Ears:
    """The parent's signal handlers: the first request goes to the ranks, a second Ctrl-C quits."""

    def __init__(self, store: Store, job: Job, *, saves: bool) -> None:
        self._store = store
        self._quiet = job.quiet
        self._generations = Path(job.folder) / "generations"
        self._saves = saves
        self._heard = Request.STOP if was_stopped() else Request.NONE
        self._passed_on = Request.NONE
        self._quits = False
        hear(self._on_terminate, self._on_interrupt)

    def pass_on(self) -> None:
        """Tell the ranks what was heard; they stop at the end of a step that all agree on."""
        if not self._saves and self._heard is Request.INTERRUPT:
            raise Quit("interrupted: what was computed until now is dropped")
        if not self._saves and self._heard is Request.STOP:
            raise StoppedEarly("stopped: what was computed until now is dropped")
        if self._quits:
            raise Quit(lost(saved_step(self._generations)))
        if self._heard > self._passed_on:
            self._store.set(STOP_KEY, str(int(self._heard)))
            self._passed_on = self._heard
            if self._heard is Request.INTERRUPT and not self._quiet:
                say(asked())

    def _on_terminate(self, _number: int, _frame: FrameType | None) -> None:
        self._heard = max(self._heard, Request.STOP)

    def _on_interrupt(self, _number: int, _frame: FrameType | None) -> None:
        self._quits = self._heard is Request.INTERRUPT
        self._heard = Request.INTERRUPT


def _failure(store: Store, rank: int, code: int, killed: dict[int, int]) -> ElinvarError:
    """The error behind the failed rank that was seen first, `rank` with exit code `code`.

    A rank that only lost a peer is not the cause: where one of `killed` (signal by rank) died
    without a word, that one is named.
    """
    if code < 0:
        return RunFailed(f"rank {rank} was killed by {signal.Signals(-code).name}")
    text = store.get(ERROR_KEY) if store.check([ERROR_KEY]) else b""
    if not text:
        return RunFailed(f"rank {rank} ended with exit code {code}")
    failure = msgspec.json.decode(text, type=Failure)
    if failure.kind:
        error = getattr(errors, failure.kind)(failure.message, failure.lines)
        assert isinstance(error, ElinvarError)
        return error
    for victim, number in killed.items():
        lost = f"rank {failure.rank} lost it: {failure.message.splitlines()[0]}"
        return RunFailed(f"rank {victim} was killed by {signal.Signals(number).name}", [lost])
    return RunFailed(f"rank {failure.rank}: {failure.message}", failure.lines)


def _killed(context: PContext) -> dict[int, int]:
    """Signal by rank of those that a signal ended. elastic itself names one failed rank, any of them."""
    assert isinstance(context, MultiprocessContext)
    assert context._pc is not None  # noqa: SLF001 - no public way to the other exit codes
    codes = {rank: process.exitcode for rank, process in enumerate(context._pc.processes)}  # noqa: SLF001
    return {rank: -code for rank, code in codes.items() if code is not None and code < 0}


def _loopback() -> str:
    return "lo0" if sys.platform == "darwin" else "lo"
