"""Runs of the real program: a small experiment, processes of their own, who is left after them, and what they learned."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch
from torch.utils import deterministic

from elinvar.cli.main import run
from elinvar.record.folder import RunFolder
from elinvar.record.metrics import effective
from experiments import write_text

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
PATIENCE_S = 60

RUN = """
[experiment.length]
steps = 100000
[experiment.model]
kind = "llama"
vocab_size = 257
hidden_size = 16
num_layers = 2
num_heads = 2
num_kv_heads = 1
intermediate_size = 32
[experiment.data]
source = "text.txt"
held_out = 7
[experiment.data.tokenizer]
kind = "bytes"
[experiment.batch]
microbatches = 4
sequences_per_microbatch = 1
tokens_per_sequence = 16
[experiment.optimizer]
kind = "adamw"
lr = 1e-2
[experiment.schedule]
kind = "constant"
[execution]
device = "cpu"
[execution.checkpoint]
every = 2
keep = 3
[execution.record]
digest_every = 1
evaluate_every = 0
"""


def write_run(folder, text=RUN):
    """`run.toml` and the text that it learns, in `folder`; the path of the file as text."""
    write_text(folder / "text.txt")
    (folder / "run.toml").write_text(text)
    return str(folder / "run.toml")


def cli(*arguments):
    """The command line in this process, whose torch settings and handlers are as before afterwards; its exit code."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
    handlers = {number: signal.getsignal(number) for number in numbers}
    before = torch.get_num_threads(), torch.get_deterministic_debug_mode()
    filling = deterministic.fill_uninitialized_memory
    try:
        return run([str(argument) for argument in arguments])
    finally:
        torch.set_num_threads(before[0])
        torch.set_deterministic_debug_mode(before[1])
        deterministic.fill_uninitialized_memory = filling
        assert {number: signal.getsignal(number) for number in numbers} == handlers


class Program:
    """`elinvar arguments` in a session of its own; stderr goes to a file that can be read meanwhile."""

    def __init__(self, folder, *arguments, prefix=("-m", "elinvar"), before=None, env=None):
        self.errors = Path(folder) / f"stderr-{time.monotonic_ns()}"
        self.output = self.errors.with_suffix(".out")
        with self.errors.open("wb") as errors, self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, *prefix, *map(str, arguments)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                env={**ENVIRONMENT, **(env or {})},
                start_new_session=True,
                preexec_fn=before,  # noqa: PLW1509 - a test's process has no other thread that matters
            )

    @property
    def said(self):
        return self.errors.read_text()

    def wait_for(self, condition, what):
        """Wait until `condition()`; fail where the program ends before."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.remove()
                raise AssertionError(f"no {what}:\n{self.said}")
            time.sleep(0.005)

    def wait_for_text(self, text):
        self.wait_for(lambda: text in self.said, text)

    def wait_for_step(self, folder, step):
        journal = Path(folder) / "metrics.jsonl"
        self.wait_for(lambda: journal.exists() and journal.read_bytes().count(b"\n") >= step, f"step {step}")

    def send(self, number, *, group=False):
        os.kill(-self.process.pid if group else self.process.pid, number)

    def remove(self):
        """End it and all that it started, after a failed test."""
        for pid in session(self.process.pid):
            os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def end(self):
        """(exit code, lines of stderr); afterwards no process of its session is left."""
        try:
            code = self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.remove()
            raise AssertionError(f"it does not end:\n{self.said}") from None
        assert left(self.process.pid) == [], "processes are left"
        return code, self.said.rstrip("\n").split("\n")


def started(folder, *arguments, **options):
    return Program(folder, "train", *arguments, **options)


def stat_fields(pid):
    """State, parent, group, session, …: what follows the name, which may hold blanks; [] for no process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def session(leader):
    """Living processes of the session of `leader`."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            fields = stat_fields(entry.name)
            if fields and fields[3] == str(leader) and fields[0] not in "ZX":
                found.append(int(entry.name))
    return found


def left(leader, patience_s=8):
    """Who of a session still lives after `patience_s`."""
    deadline = time.monotonic() + patience_s
    while session(leader) and time.monotonic() < deadline:
        time.sleep(0.02)
    return session(leader)


def children(pid):
    return sorted(child for child in map(int, _children(pid)))


def _children(pid):
    try:
        return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []


def ranks_of(program):
    """Process ids of the launched ranks, rank 0 first: children of the forkserver."""
    for child in children(program.process.pid):
        if b"forkserver" in Path(f"/proc/{child}/cmdline").read_bytes():
            return children(child)
    return []


def digests(folder):
    """Update digest of each step, of the last attempt that took it."""
    rows, _ = RunFolder.open(Path(folder)).metrics()
    return {row.step: row.update_digest for row in effective(rows)}


def kinds(folder, kind):
    """The events of one kind."""
    return [event for event in RunFolder.open(Path(folder)).events()[0] if event.kind == kind]


def last_end(folder):
    return RunFolder.open(Path(folder)).attempts()[-1].end


class Reference:
    """One rank that nothing happens to, as far as somebody asks."""

    def __init__(self, run_file, folder):
        self._run_file, self._folder = run_file, folder
        self._digests = {}

    def __call__(self, step):
        """{step: digest} of steps 1 to `step`."""
        if step not in self._digests:
            until = (step // 25 + 1) * 25
            assert cli("train", self._run_file, "--run", self._folder, "--until", until, "--quiet") == 0
            self._digests = digests(self._folder)
        return {number: self._digests[number] for number in range(1, step + 1)}
