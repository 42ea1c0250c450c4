"""The fingerprint: the same for the same kernels, another one for whatever may move bits, and no names."""

import pytest
import torch
from msgspec.structs import replace

from elinvar.identity import is_digest
from elinvar.numerics.fingerprint import fingerprint, fingerprint_digest
from elinvar.spec.numerics import Numerics

NUMERICS = Numerics()


def test_it_is_stable_and_flat():
    first, second = fingerprint(NUMERICS, "cpu"), fingerprint(NUMERICS, "cpu")
    assert first == second
    assert fingerprint_digest(first) == fingerprint_digest(second)
    assert is_digest(fingerprint_digest(first))
    assert all(isinstance(value, str) and value for value in first.values())
    assert first["torch"] == torch.__version__
    assert fingerprint_digest(dict(reversed(first.items()))) == fingerprint_digest(first)


@pytest.mark.parametrize("change", [{"threads": 2}, {"deterministic": False}])
def test_threads_and_kernels_move_it(change):
    assert fingerprint(replace(NUMERICS, **change), "cpu") != fingerprint(NUMERICS, "cpu")


def test_the_vector_width_of_kernels_moves_it(monkeypatch):
    before = fingerprint_digest(fingerprint(NUMERICS, "cpu"))
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "ANOTHER")
    assert fingerprint_digest(fingerprint(NUMERICS, "cpu")) != before


def test_the_build_of_torch_moves_it(monkeypatch):
    before = fingerprint_digest(fingerprint(NUMERICS, "cpu"))
    monkeypatch.setattr(torch.__config__, "show", lambda: "another build")
    assert fingerprint_digest(fingerprint(NUMERICS, "cpu")) != before


def test_it_does_not_depend_on_what_the_process_is_set_to():
    """Threads are the experiment's, whatever this process happens to use now."""
    before = fingerprint(NUMERICS, "cpu")
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        assert fingerprint(NUMERICS, "cpu") == before
    finally:
        torch.set_num_threads(threads)


def test_it_names_kernels_and_no_host_rank_or_place():
    assert set(fingerprint(NUMERICS, "cpu")) == {
        "torch",
        "torch_build",
        "machine",
        "cpu",
        "cpu_capability",
        "threads",
        "deterministic",
        "optimizer",
        "device",
    }


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_cuda_device_has_another_one():
    parts = fingerprint(NUMERICS, "cuda")
    assert parts["device_name"]
    assert fingerprint_digest(parts) != fingerprint_digest(fingerprint(NUMERICS, "cpu"))
