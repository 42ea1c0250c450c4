"""Writes that survive a power cut, and the errors of a disk that refuses them.

Nouns: a whole file (complete or absent, never half), a directory entry. It never overwrites
silently half a file, and it never calls a write done before `fsync` said so.
"""

import errno
import os
import secrets
from contextlib import suppress
from pathlib import Path

from elinvar.errors import DoesNotFit, ElinvarError, InvalidInput, StorageFailed

_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS)
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_WRONG_NAME = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.EINVAL, errno.ELOOP)

TEMPORARY = ".new"
"""Ending of a file that is being written; one left behind by a killed writer may be removed."""


def write_failed(path: Path, error: OSError) -> StorageFailed:
    """The error of a write to `path` that failed while a run was under way (exit 1, resumable)."""
    reason = os.strerror(error.errno) if error.errno else str(error)
    if error.errno in _FULL:
        hint = f"free space on the file system of {path.parent}, then continue the run"
    else:
        hint = "make the file writable again, then continue the run"
    return StorageFailed(f"cannot write {path}: {reason}", [hint])


def place_failed(path: Path, error: OSError, instead: str = "") -> ElinvarError:
    """The error of a place that cannot be used: not allowed here (3), a wrong name (2), a full disk (1).

    `instead` is the option by which the user names another place.
    """
    reason = os.strerror(error.errno) if error.errno else str(error)
    message = f"cannot write {path}: {reason}"
    elsewhere = [f"choose another place: {instead}"] if instead else []
    if error.errno in _REFUSED:
        return DoesNotFit(message, elsewhere)
    if error.errno in _WRONG_NAME:
        return InvalidInput(message, elsewhere)
    if error.errno in _FULL:
        return StorageFailed(message, [f"free space on the file system of {path.parent}", *elsewhere])
    return StorageFailed(message, elsewhere)


def read_bytes(path: Path) -> bytes:
    """The bytes of `path`; InvalidInput where it is missing, DoesNotFit where it may not be read."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise InvalidInput(f"no such file: {path}") from None
    except OSError as error:
        raise read_failed(path, error) from None


def read_failed(path: Path, error: OSError) -> ElinvarError:
    """The error of a place that cannot be read: not allowed (3), a wrong name (2), a failing disk (1)."""
    reason = os.strerror(error.errno) if error.errno else str(error)
    if error.errno in _REFUSED:
        return DoesNotFit(f"cannot read {path}: {reason}")
    if error.errno in _WRONG_NAME:
        return InvalidInput(f"cannot read {path}: {reason}")
    return StorageFailed(f"cannot read {path}: {reason}")


def sync_directory(path: Path) -> None:
    """Make the entries of directory `path` durable: after a rename, before anybody is told of it."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_whole(path: Path, data: bytes) -> None:
    """Put `data` at `path`, durable and all at once: readers see the old file or the new one.

    Raises OSError as the system gives it, with nothing of the new file left behind.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}{TEMPORARY}")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
            os.fsync(fd)
        finally:
            os.close(fd)
        temporary.rename(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    sync_directory(path.parent)
