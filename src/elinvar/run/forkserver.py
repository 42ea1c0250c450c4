"""The warm process that ranks are forked from: PyTorch imported once, no operation run.

It costs one import instead of one a rank, and it starts while the parent imports PyTorch itself.
Nothing here imports PyTorch, so that it can be called first.
"""

import multiprocessing
from multiprocessing import forkserver

WORKER = "elinvar.run.worker"


def warm_up() -> None:
    """Start the forkserver in the background; a second call does nothing."""
    multiprocessing.get_context("forkserver").set_forkserver_preload([WORKER])
    forkserver.ensure_running()
