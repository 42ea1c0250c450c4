"""One small experiment for the tests of generations; `checkpoint_work` is imported by name."""

import sys
from pathlib import Path

import pytest

from experiments import rank_of, small_experiment

sys.path.append(str(Path(__file__).parent))


@pytest.fixture(scope="session")
def experiment(tmp_path_factory):
    return small_experiment(tmp_path_factory.mktemp("checkpoint"), microbatches=3)


@pytest.fixture
def rank(experiment):
    return rank_of(experiment)
