"""What every test gets: one thread per process, and a cache of its own that lives as long as the session."""

import os
import sys
from pathlib import Path

# Modules that tests share are imported by name, also by the processes that tests start.
sys.path.append(str(Path(__file__).parent))

# Before numpy or torch can be imported anywhere: libraries read these once.
for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS"):
    os.environ[variable] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["NO_COLOR"] = "1"

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "house",
    max_examples=30,
    deadline=None,  # two shared cores: a slow example is no failure
    derandomize=True,  # a red suite is red for everybody
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("house")

_LAUNCHER = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "GROUP_RANK",
)


@pytest.fixture(scope="session", autouse=True)
def _cache(tmp_path_factory):
    """Built stores go to one folder for the whole session, unless the caller names one to share."""
    patch = pytest.MonkeyPatch()
    if "ELINVAR_TEST_CACHE" in os.environ:
        patch.setenv("ELINVAR_CACHE", os.environ["ELINVAR_TEST_CACHE"])
    else:
        patch.setenv("ELINVAR_CACHE", str(tmp_path_factory.mktemp("cache")))
    yield
    patch.undo()


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch):
    """A launcher's variables of the caller never reach a test."""
    for variable in _LAUNCHER:
        monkeypatch.delenv(variable, raising=False)
