"""One small experiment for all tests of training."""

import pytest

from experiments import small_experiment


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("train")


@pytest.fixture(scope="session")
def experiment(folder):
    return small_experiment(folder)
