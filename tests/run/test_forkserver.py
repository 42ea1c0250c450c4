"""Ranks start wherever TMPDIR points."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import multiprocessing, sys
from elinvar.run.forkserver import warm_up
if __name__ == "__main__":
    warm_up()
    process = multiprocessing.get_context("forkserver").Process(target=print, args=("it runs",))
    process.start()
    process.join()
    sys.exit(process.exitcode)
"""


@pytest.mark.drill
def test_a_long_temporary_folder_is_no_obstacle(tmp_path):
    place = tmp_path / ("long" * 20)
    place.mkdir()
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    environment = {**os.environ, "TMPDIR": str(place)}
    done = subprocess.run(
        [sys.executable, program], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, "it runs\n"), done.stderr
