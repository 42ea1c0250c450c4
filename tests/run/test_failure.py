"""Whose failure is told: the rank that caused it, never a peer that only lost it."""

import msgspec
import pytest
import torch.distributed as dist

from elinvar.errors import InvalidInput, RunFailed
from elinvar.run.launch import _failure
from elinvar.run.worker import ERROR_KEY, Failure


def store_with(failure=None):
    store = dist.HashStore()
    if failure is not None:
        store.set(ERROR_KEY, msgspec.json.encode(failure))
    return store


LOST = Failure(1, "", "RuntimeError: Connection closed by peer\nmore", ("Traceback", "line"))
WRONG = Failure(0, "InvalidInput", "no such file: a.txt", ("hint",))


@pytest.mark.parametrize(
    ("failure", "rank", "code", "killed", "kind", "text"),
    [
        (None, 2, -9, {2: 9}, RunFailed, "rank 2 was killed by SIGKILL"),
        (LOST, 2, -9, {2: 9}, RunFailed, "rank 2 was killed by SIGKILL"),
        (LOST, 1, 1, {2: 9}, RunFailed, "rank 2 was killed by SIGKILL"),
        (LOST, 1, 1, {2: 11}, RunFailed, "rank 2 was killed by SIGSEGV"),
        (LOST, 1, 1, {}, RunFailed, "rank 1: RuntimeError: Connection closed by peer\nmore"),
        (WRONG, 0, 1, {1: 9}, InvalidInput, "no such file: a.txt"),
        (WRONG, 1, 1, {}, InvalidInput, "no such file: a.txt"),
        (None, 1, 3, {}, RunFailed, "rank 1 ended with exit code 3"),
    ],
)
def test_the_cause_is_told(failure, rank, code, killed, kind, text):
    error = _failure(store_with(failure), rank, code, killed)
    assert type(error) is kind
    assert error.message == text


def test_what_the_peer_saw_is_one_line_below():
    error = _failure(store_with(LOST), 1, 1, {2: 9})
    assert error.lines == ("rank 1 lost it: RuntimeError: Connection closed by peer",)
