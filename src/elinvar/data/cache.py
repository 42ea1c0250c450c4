"""Where stores are kept between runs, and how a folder appears there all at once or not at all.

Nouns: the root, the key of a store, publishing. A folder is built under a temporary name beside its
place and renamed when it is complete and synced; of several builders the first wins and the others
take its folder. Leftovers of killed builders are removed by the next one: their lock is free. Who
replaces a damaged folder holds the lock of its key from the look at it until the new one is there.

The root is $ELINVAR_CACHE, else $XDG_CACHE_HOME/elinvar, else ~/.cache/elinvar.
"""

import errno
import fcntl
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from blake3 import blake3

from elinvar.errors import DoesNotFit, InvalidInput
from elinvar.record.durable import sync_directory

ROOT_VARIABLE = "ELINVAR_CACHE"

_BUILDING = ".building"
_LOCK = "lock"
_DEAD_AFTER_S = 3600.0


def cache_root() -> Path:
    """The folder under which stores are kept. InvalidInput where no variable names one."""
    for variable, below in ((ROOT_VARIABLE, ""), ("XDG_CACHE_HOME", "elinvar")):
        value = os.environ.get(variable)
        if value and Path(value).is_absolute():
            return Path(value, below)
        if value and variable == ROOT_VARIABLE:
            return Path.cwd() / value
    try:
        return Path.home() / ".cache" / "elinvar"
    except RuntimeError:
        raise InvalidInput(
            f"there is no home folder to keep data in: set {ROOT_VARIABLE} to a folder"
        ) from None


def key_of(*parts: str) -> str:
    """A folder name for everything that decides a store's content."""
    return blake3("\0".join(parts).encode("utf-8")).hexdigest(length=16)


@contextmanager
def locked(root: Path, key: str) -> Iterator[None]:
    """Hold the right to build or replace the store `key` under `root`; waits for whoever has it.

    The kernel gives the lock free when its holder ends. OSError as the system gives it.
    """
    place = root / "locks"
    place.mkdir(parents=True, exist_ok=True)
    lock = os.open(place / key, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def publish(target: Path, build: Callable[[Path], None]) -> bool:
    """Let `build` fill a temporary folder and rename it to `target`; False where somebody else was first.

    OSError as the system gives it; nothing half built is ever visible under `target`.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(target.parent)
    building, lock = _begin(target)
    try:
        build(building)
        (building / _LOCK).unlink()
        for path in building.iterdir():
            _sync(path)
        sync_directory(building)
        won = _rename(building, target)
        if won:
            sync_directory(target.parent)
        return won
    finally:
        os.close(lock)
        shutil.rmtree(building, ignore_errors=True)


def set_aside(folder: Path) -> Path | None:
    """Move a damaged folder to a name beside its own, so that it can be looked at; the new name.

    None where it vanished by itself. The caller holds the key's lock (`locked`) since it looked at
    the folder: else it might move the sound one that another process has put there since.
    """
    aside = folder.with_name(f"{folder.name}.{secrets.token_hex(4)}.damaged")
    try:
        folder.rename(aside)
    except FileNotFoundError:
        return None
    return aside


def cannot_keep(root: Path, error: OSError) -> DoesNotFit:
    """The error of a cache that cannot be written: valid data, but no place for it on this machine."""
    reason = error.strerror or str(error)
    return DoesNotFit(
        f"cannot keep the tokens of the data in {root}: {reason}",
        [f"set {ROOT_VARIABLE} to a folder that you may write and that has space"],
    )


def _begin(target: Path) -> tuple[Path, int]:
    """A new temporary folder for `target`, and the open file of its lock, which is held."""
    while True:
        building = target.parent / f".{target.name}.{secrets.token_hex(4)}{_BUILDING}"
        building.mkdir()
        lock = os.open(building / _LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            # Between the two calls above the lock was free, and somebody may have cleared the folder away.
            if (building / _LOCK).exists():
                return building, lock
        except BaseException:
            os.close(lock)
            shutil.rmtree(building, ignore_errors=True)
            raise
        os.close(lock)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _rename(building: Path, target: Path) -> bool:
    """Rename unless `target` is there: a folder that holds files is never replaced by rename."""
    try:
        building.rename(target)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            return False
        raise
    return True


def _remove_leftovers(parent: Path) -> None:
    """Remove what killed builders left: temporary folders whose lock nobody holds."""
    for leftover in parent.glob(f".*{_BUILDING}"):
        try:
            lock = os.open(leftover / _LOCK, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            # No lock: its builder is between two system calls, or died there long ago.
            with suppress(OSError):
                if time.time() - leftover.stat().st_mtime > _DEAD_AFTER_S:
                    shutil.rmtree(leftover, ignore_errors=True)
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(leftover, ignore_errors=True)
        except OSError:
            continue
        finally:
            os.close(lock)
