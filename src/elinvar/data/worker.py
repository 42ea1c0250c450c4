"""What an input worker does: read coordinates, answer with microbatches, and never outlive its parent.

It holds no state of the run: the parent ends it at any moment. Imports of arrays stay inside, so
that the number of their threads is set before they load.
"""

import ctypes
import os
import signal
import struct
import sys
from multiprocessing.connection import Connection
from pathlib import Path

from elinvar.errors import ElinvarError, RunFailed
from elinvar.identity import Digest
from elinvar.spec.experiment import Experiment

TASK = struct.Struct("<QQ")
"""A task on the wire: step, leaf."""

FOR_THE_PARENT = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""Signals that ask for a stop. A terminal or a scheduler sends them to everybody; only the parent answers."""

_SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of <linux/prctl.h>


def serve(
    path: Path, experiment: Experiment, dataset: Digest, parent: int, tasks: Connection, results: Connection
) -> None:
    """Answer every task with its Microbatch, or with the error that stops this worker."""
    _die_with(parent)
    for number in FOR_THE_PARENT:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FOR_THE_PARENT)
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # must stand before numpy loads, so its import comes after
    from elinvar.data.feed import reopen

    try:
        feed = reopen(path, experiment, dataset)
        while True:
            step, leaf = TASK.unpack(tasks.recv_bytes())
            results.send(feed.training(step, leaf))
    except (EOFError, BrokenPipeError):
        return  # the parent has closed its end, or is gone
    except ElinvarError as error:
        results.send(error)
    except Exception as error:  # noqa: BLE001 - whatever it is, the parent must say it
        results.send(RunFailed(f"an input worker failed: {type(error).__name__}: {error}"))


def _die_with(parent: int) -> None:
    """Be killed by the system when the parent ends, however it ends (Linux; elsewhere its pipe closes)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)  # it ended before the call above
