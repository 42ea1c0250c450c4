"""The payload: one file a rank, written and made durable before anybody is told of it.

The hash of each piece is taken over the bytes in memory, before the write: a hash of what the disk
gives back would bless whatever the disk gives back.
"""

import os
from pathlib import Path

from blake3 import blake3

from elinvar.checkpoint.capture import Snapshot
from elinvar.record.durable import sync_directory, write_failed
from elinvar.record.manifest import Piece


def write_shares(snapshot: Snapshot, folder: Path, rank: int) -> list[tuple[str, Piece]]:
    """Write this rank's shares to a new file in `folder`; returns (tensor name, where it lies).

    Raises StorageFailed where the disk refuses; the folder is then no generation, since it has no
    commit record.
    """
    path = folder / f"rank-{rank}.bin"
    places: list[tuple[str, Piece]] = []
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            offset = 0
            for share in snapshot.shares:
                data = share.data.data.cast("B")
                place = Piece(
                    file=path.name,
                    offset=offset,
                    length=len(data),
                    start=share.piece.start,
                    stop=share.piece.stop,
                    blake3=blake3(data).hexdigest(),
                )
                places.append((share.tensor, place))
                offset += len(data)
                while data:
                    data = data[os.write(fd, data) :]
            os.fsync(fd)
        finally:
            os.close(fd)
        sync_directory(folder)
    except OSError as error:
        raise write_failed(path, error) from error
    return places
