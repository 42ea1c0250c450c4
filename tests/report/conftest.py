"""`runs`: the module that makes run folders without training."""

import importlib.util
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def runs():
    spec = importlib.util.spec_from_file_location("elinvar_test_runs", Path(__file__).parent / "runs.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def eventful(runs, tmp_path_factory):
    """A run killed once, stopped once and completed, with a proof; nobody may change it."""
    return runs.eventful_folder(tmp_path_factory.mktemp("runs") / "tiny-68470d")
