"""The warm process that ranks are forked from: PyTorch imported once, no operation run.

It costs one import instead of one a rank, and it starts while the parent imports PyTorch itself.
Nothing here imports PyTorch, so that it can be called first.
"""

import multiprocessing
import os
import signal
import tempfile
from multiprocessing import forkserver, resource_tracker, util

from elinvar.data.worker import FOR_THE_PARENT

_PRELOAD = "elinvar.run.forked"
_LONGEST_PLACE = 60


def warm_up() -> None:
    """Start the forkserver in the background; a second call does nothing.

    Call it in a thread that lives as long as the ranks: the forkserver dies with it.
    """
    _place_sockets()
    multiprocessing.get_context("forkserver").set_forkserver_preload([_PRELOAD])
    # The tracker's own start would unblock the signals again, so that comes first.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, FOR_THE_PARENT)
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _place_sockets() -> None:
    """Where TMPDIR is long, as in a cluster's job folders, put the sockets of processes below /tmp.

    The address of a Unix socket has at most 107 bytes; multiprocessing adds up to 40 to its folder.
    """
    if len(os.fsencode(tempfile.gettempdir())) <= _LONGEST_PLACE:
        return
    usual, tempfile.tempdir = tempfile.tempdir, "/tmp"  # noqa: S108  # mkdtemp makes a private folder in it
    try:
        util.get_temp_dir()
    finally:
        tempfile.tempdir = usual
