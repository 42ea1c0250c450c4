"""Claim: the command line answers in a tenth of the time that importing PyTorch takes.

    python benchmarks/start_up.py [--rounds 7]

CPU seconds (user and system) of whole processes, the least of several rounds, all in turn in one
run: a Python that imports PyTorch, a Python that does nothing, and commands that need no PyTorch.
"""

import argparse
import os
import subprocess
import sys

COMMANDS = {
    "python -c 'import torch'": [sys.executable, "-c", "import torch"],
    "python -c pass": [sys.executable, "-c", "pass"],
    "elinvar --help": [sys.executable, "-m", "elinvar", "--help"],
    "elinvar plan tiny": [sys.executable, "-m", "elinvar", "plan", "tiny"],
    "elinvar show tiny": [sys.executable, "-m", "elinvar", "show", "tiny"],
}
YARDSTICK = next(iter(COMMANDS))


def cpu_seconds(command: list[str]) -> float:
    """CPU seconds of one process and its children."""
    before = os.times()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    after = os.times()
    return (after.children_user - before.children_user) + (after.children_system - before.children_system)


def main() -> None:
    """Print a line a command: its least CPU time, and its ratio to importing PyTorch."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    found = {name: [] for name in COMMANDS}
    for _ in range(rounds):
        for name, command in COMMANDS.items():
            found[name].append(cpu_seconds(command))
    yardstick = min(found[YARDSTICK])
    for name, seconds in found.items():
        print(f"{name:<26} {min(seconds):6.3f} CPU-s   {min(seconds) / yardstick:6.3f} of importing PyTorch")


if __name__ == "__main__":
    main()
