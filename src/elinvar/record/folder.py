"""The folder of a run: made once, exclusively, and never deleted or overwritten.

    experiment.json  lineage.json (forks)  attempts.jsonl  metrics.jsonl  events.jsonl
    ledger/steps.jsonl  generations/  proof.json  report.html  lock

Nouns: `RunFolder`, its `Journals`, its `Lock` and the lock's `Holder`. The folder is a run when
`experiment.json` is there, which is written last. It refuses a folder with anything else in it, a
second writer, and records of a newer schema.
"""

import errno
import fcntl
import json
import os
import socket
import time
from contextlib import suppress
from pathlib import Path
from shlex import quote
from types import TracebackType
from typing import NamedTuple, Self

from elinvar.errors import InvalidInput
from elinvar.record.attempt import Attempt, AttemptEnd, AttemptStart, next_attempt, read_attempts
from elinvar.record.durable import TEMPORARY, place_failed, read_bytes, sync_directory, write_whole
from elinvar.record.events import Event
from elinvar.record.journal import Journal, read_journal
from elinvar.record.ledger import LedgerRow
from elinvar.record.lineage import Lineage, encode_lineage, read_lineage
from elinvar.record.manifest import Generation, list_generations
from elinvar.record.metrics import MetricsRow
from elinvar.spec.experiment import Experiment
from elinvar.spec.read import parse_experiment

EXPERIMENT = "experiment.json"
LINEAGE = "lineage.json"
LOCK = "lock"

# A lock that is held for the blink of a creation is waited for; a run's is not.
_LOCK_PATIENCE_S = 0.3


class Journals(NamedTuple):
    """The four open journals of a run, for the one process that writes them."""

    attempts: Journal[AttemptStart | AttemptEnd]
    metrics: Journal[MetricsRow]
    events: Journal[Event]
    ledger: Journal[LedgerRow]

    def sync(self) -> None:
        """Make every row so far durable."""
        for journal in self:
            journal.sync()

    def close(self) -> None:
        """Close all four."""
        for journal in self:
            journal.close()

    @property
    def torn(self) -> dict[str, int]:
        """Bytes of the torn last line that opening closed, by file name; only files that had one."""
        return {journal.path.name: journal.torn_bytes for journal in self if journal.torn_bytes}


class Holder(NamedTuple):
    """Who wrote the lock file: process id, host name, Unix time, and when the process began.

    `started` is in the kernel's clock ticks ("" where the system has no /proc): with the process
    id it names a process once, even after the id is given to another.
    """

    pid: int
    host: str
    time_s: float
    started: str


class Lock:
    """The right to write a run folder, until `release` or the end of the process."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def release(self) -> None:
        """Give the folder free; a second call does nothing."""
        if self._fd >= 0:
            with suppress(OSError):
                os.ftruncate(self._fd, 0)
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class RunFolder:
    """A run folder that exists; get one from `create` or `open`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @staticmethod
    def create(path: Path, experiment_json: bytes, lineage: Lineage | None = None) -> "RunFolder":
        """Make the folder of a new run at `path`, which must be absent or empty.

        `experiment_json` are the bytes of `spec.read.experiment_json`. Of two processes that
        create the same folder one gets it. Raises InvalidInput where anything is there already
        (nothing is changed then), DoesNotFit where the place may not be written, StorageFailed
        where the disk is full (nothing is left behind then).
        """
        path = path.absolute()
        made = _make(path)
        try:
            lock = _lock(path)
        except OSError as error:
            if made:
                with suppress(OSError):
                    (path / LOCK).unlink(missing_ok=True)
                    path.rmdir()
            raise place_failed(path, error, "--run DIR") from error
        with lock:
            _check_empty(path)
            try:
                if lineage is not None:
                    write_whole(path / LINEAGE, encode_lineage(lineage))
                (path / "ledger").mkdir(exist_ok=True)
                (path / "generations").mkdir(exist_ok=True)
                write_whole(path / EXPERIMENT, experiment_json)
                sync_directory(path.parent)
            except OSError as error:
                _unmake(path, made=made)
                raise place_failed(path, error, "--run DIR") from error
        return RunFolder(path)

    @staticmethod
    def open(path: Path) -> "RunFolder":
        """The run folder at `path`. Raises InvalidInput: missing, no run folder, damaged or of a newer schema."""
        path = path.absolute()
        if not path.exists():
            raise InvalidInput(f"no such run folder: {path}")
        if not path.is_dir():
            raise InvalidInput(f"{path} is a file, not a run folder")
        if not (path / EXPERIMENT).exists():
            raise InvalidInput(f"{path} is no run folder: it has no {EXPERIMENT}")
        folder = RunFolder(path)
        folder.experiment()
        return folder

    def experiment(self) -> Experiment:
        """The experiment of the run.

        Raises InvalidInput where the file is damaged, of a newer schema, or names digests that are
        not those of what it holds.
        """
        data = read_bytes(self.path / EXPERIMENT)
        try:
            return parse_experiment(data)
        except InvalidInput as error:
            raise InvalidInput(f"{self.path}: {error.message}", error.lines) from None

    def experiment_of(self, attempt: Attempt | None) -> Experiment:
        """What `attempt` computed: the folder's experiment, or the same math that was accepted in its place."""
        if attempt is None or attempt.start.experiment is None:
            return self.experiment()
        try:
            return parse_experiment(json.dumps(attempt.start.experiment).encode())
        except InvalidInput as error:
            raise InvalidInput(f"{self.attempts_path}: {error.message}", error.lines) from None

    def present_experiment(self) -> Experiment:
        """What the run goes on with: the last attempt's experiment."""
        attempts = self.attempts()
        return self.experiment_of(attempts[-1] if attempts else None)

    def lineage(self) -> Lineage | None:
        """Where a fork began; None for a run that is no fork."""
        return read_lineage(self.path / LINEAGE)

    def lock(self) -> Lock:
        """Take the right to write, held until released or until this process (and its forks) end.

        Raises InvalidInput naming the holder where another process has it.
        """
        try:
            return _lock(self.path)
        except OSError as error:
            raise place_failed(self.path / LOCK, error) from error

    def holder(self) -> Holder | None:
        """Who wrote the lock and did not give it back, alive or not; read without touching the lock."""
        return _holder(self.path)

    @property
    def is_running(self) -> bool | None:
        """Whether a process writes this folder; None where only the host of the holder can tell.

        Looks at the holder's process, never at the lock: a reader must not get in a writer's way.
        """
        holder = self.holder()
        if holder is None:
            return False
        if holder.host != socket.gethostname():
            return None
        try:
            os.kill(holder.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass  # alive, of another user
        return _started(holder.pid) == holder.started

    def journals(self) -> Journals:
        """Open all journals for appending; torn last lines are closed and found in `torn`."""
        opened: list[Journal[object]] = []
        try:
            for path in (self.attempts_path, self.metrics_path, self.events_path, self.ledger_path):
                opened.append(Journal(path))
        except BaseException:
            for journal in opened:
                journal.close()
            raise
        return Journals(*opened)  # type: ignore[arg-type]  # one Journal class; the row types are by position

    @property
    def attempts_path(self) -> Path:
        """Rows: `AttemptStart`, `AttemptEnd`."""
        return self.path / "attempts.jsonl"

    @property
    def metrics_path(self) -> Path:
        """Rows: `MetricsRow`."""
        return self.path / "metrics.jsonl"

    @property
    def events_path(self) -> Path:
        """Rows: `Event`."""
        return self.path / "events.jsonl"

    @property
    def ledger_path(self) -> Path:
        """Rows: `LedgerRow`."""
        return self.path / "ledger" / "steps.jsonl"

    @property
    def generations_path(self) -> Path:
        """The folder of the generations."""
        return self.path / "generations"

    @property
    def proof_path(self) -> Path:
        """Where `verify` puts its proof."""
        return self.path / "proof.json"

    def attempts(self) -> list[Attempt]:
        """Its launches, by number."""
        return read_attempts(self.attempts_path)

    def next_attempt(self) -> int:
        """The number of the next launch: one that no row of any journal has."""
        return next_attempt(self.attempts_path, self.metrics_path, self.events_path, self.ledger_path)

    def metrics(self) -> tuple[list[MetricsRow], int]:
        """All rows in file order, and the number of unreadable lines."""
        return read_journal(self.metrics_path, MetricsRow)

    def events(self) -> tuple[list[Event], int]:
        """All events in file order, and the number of unreadable lines."""
        return read_journal(self.events_path, Event)

    def ledger(self) -> tuple[list[LedgerRow], int]:
        """All rows in file order, and the number of unreadable lines."""
        return read_journal(self.ledger_path, LedgerRow)

    def generations(self) -> list[Generation]:
        """Its committed generations, newest last."""
        return list_generations(self.generations_path)


def new_path(root: Path, name: str, digest: str) -> Path:
    """The first free `root/<name>-<digest6>[-n]`, n from 2; `RunFolder.create` decides who gets it."""
    stem = f"{name}-{digest[:6]}"
    path, number = root / stem, 2
    while path.exists() or path.is_symlink():
        path, number = root / f"{stem}-{number}", number + 1
    return path


def _make(path: Path) -> bool:
    """Make directory `path` and its parents; False where it was there already, empty."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir()
        return True
    except FileExistsError:
        if not path.is_dir():
            taken = path if path.exists() or path.is_symlink() else path.parent
            raise InvalidInput(
                f"{taken} is there already, and is no folder", ["choose another: --run OTHER"]
            ) from None
    except OSError as error:
        raise place_failed(path, error, "--run DIR") from error
    try:
        _check_empty(path)
    except OSError as error:
        raise place_failed(path, error, "--run DIR") from error
    return False


def _unmake(path: Path, *, made: bool) -> None:
    """Take back what a failed creation put into `path`; anything else that is there stays."""
    for name in (EXPERIMENT, LINEAGE, LOCK):
        with suppress(OSError):
            (path / name).unlink()
    for name in ("ledger", "generations"):
        with suppress(OSError):
            (path / name).rmdir()
    if made:
        with suppress(OSError):
            path.rmdir()


def _check_empty(path: Path) -> None:
    """Refuse a folder that holds anything but what a killed creation leaves behind."""
    names = sorted(entry.name for entry in path.iterdir())
    if EXPERIMENT in names:
        raise InvalidInput(
            f"{path} holds a run already; nothing was changed",
            [f"to continue it: elinvar resume {quote(str(path))}", "to start another: --run OTHER"],
        )
    foreign = [name for name in names if not _is_leftover(path, name)]
    if foreign:
        shown = ", ".join(foreign[:3]) + (f" and {len(foreign) - 3} more" if len(foreign) > 3 else "")
        raise InvalidInput(
            f"{path} is not empty and is no run folder (it holds {shown}); nothing was changed",
            ["choose an empty or new folder: --run OTHER"],
        )


def _is_leftover(path: Path, name: str) -> bool:
    if name in (LOCK, LINEAGE) or (name.startswith(".") and name.endswith(TEMPORARY)):
        return True
    return name in ("ledger", "generations") and not any((path / name).iterdir())


def _lock(path: Path) -> Lock:
    """Take the lock of folder `path` or raise InvalidInput; other failures come as OSError."""
    fd = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        deadline = time.monotonic() + _LOCK_PATIENCE_S
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                    raise
                if time.monotonic() > deadline:
                    raise _in_use(path) from None
                time.sleep(0.02)
        os.ftruncate(fd, 0)
        entry = Holder(os.getpid(), socket.gethostname(), time.time(), _started(os.getpid()))
        os.pwrite(fd, json.dumps(entry._asdict()).encode() + b"\n", 0)
    except BaseException:
        os.close(fd)
        raise
    return Lock(fd)


def _holder(path: Path) -> Holder | None:
    try:
        entry = json.loads((path / LOCK).read_bytes())
        return Holder(int(entry["pid"]), str(entry["host"]), float(entry["time_s"]), str(entry["started"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _started(pid: int) -> str:
    """When process `pid` began: field 22 of /proc/PID/stat, counted after the name, which may hold spaces."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def _in_use(path: Path) -> InvalidInput:
    holder = _holder(path)
    who = f"process {holder.pid} on {holder.host}" if holder else "another process"
    return InvalidInput(
        f"{path} is in use: {who} writes it",
        ["wait for it or stop it, or start another run: --run OTHER"],
    )
