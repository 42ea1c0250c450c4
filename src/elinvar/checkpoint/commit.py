"""A generation becomes real: payload durable, manifest durable, then the commit record.

`commit` is called by all ranks together and returns on all or fails on all. A folder name is never
used twice (it carries a fresh nonce), and a folder without `commit.json` is no generation.
"""

import os
import secrets
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from elinvar.checkpoint.capture import Snapshot
from elinvar.checkpoint.write import write_shares
from elinvar.errors import ElinvarError, StorageFailed
from elinvar.identity import Digest
from elinvar.parallel.collective import gather_bytes
from elinvar.parallel.world import World
from elinvar.record import manifest as record
from elinvar.record.durable import sync_directory, write_failed, write_whole


class _Written(msgspec.Struct):
    """What a rank tells the others: its pieces, or why it could not write them."""

    places: list[tuple[str, record.Piece]] = []
    failed: str = ""


def commit(
    snapshot: Snapshot,
    world: World,
    generations: Path,
    *,
    experiment_digest: Digest,
    math_digest: Digest,
    fingerprint_digest: Digest,
    parent: str | None,
) -> record.Generation:
    """Write `snapshot` as a new generation below `generations`; collective.

    Raises StorageFailed on every rank when one of them could not write; what was committed before
    is untouched, and the unfinished folder is removed.
    """
    nonce = gather_bytes(world, secrets.token_hex(4).encode())[0].decode()
    name = record.generation_name(snapshot.step, snapshot.update_digest, nonce)
    folder = generations / name
    _agree(world, lambda: _make(folder) if world.rank == 0 else None)
    try:
        written = _agree(world, lambda: write_shares(snapshot, folder, world.rank))
        _agree(
            world,
            lambda: (
                _publish(
                    folder,
                    _manifest(
                        snapshot,
                        written,
                        experiment_digest=experiment_digest,
                        math_digest=math_digest,
                        fingerprint_digest=fingerprint_digest,
                        parent=parent,
                    ),
                    nonce,
                )
                if world.rank == 0
                else None
            ),
        )
    except StorageFailed:
        if world.rank == 0 and not (folder / record.COMMIT).exists():
            shutil.rmtree(folder, ignore_errors=True)
        raise
    return next(g for g in record.list_generations(generations) if g.name == name)


def _agree(
    world: World, work: Callable[[], list[tuple[str, record.Piece]] | None]
) -> list[tuple[str, record.Piece]]:
    """Do `work` on every rank; if it fails on one, fail on all, naming the rank."""
    mine = _Written()
    try:
        mine.places = work() or []
    except ElinvarError as error:
        mine.failed = str(error)
    everyone = [
        msgspec.json.decode(row, type=_Written) for row in gather_bytes(world, msgspec.json.encode(mine))
    ]
    for rank, row in enumerate(everyone):
        if row.failed:
            where = "" if world.size == 1 else f"rank {rank}: "
            raise StorageFailed(f"the checkpoint was not written: {where}{row.failed}")
    return [place for row in everyone for place in row.places]


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True)
        sync_directory(folder.parent)
    except OSError as error:
        raise write_failed(folder, error) from error


def _manifest(
    snapshot: Snapshot,
    written: list[tuple[str, record.Piece]],
    *,
    experiment_digest: Digest,
    math_digest: Digest,
    fingerprint_digest: Digest,
    parent: str | None,
) -> record.Manifest:
    by_tensor: dict[str, list[record.Piece]] = {name: [] for name in snapshot.lanes}
    for name, place in written:
        by_tensor[name].append(place)
    tensors = [
        record.TensorEntry(
            name=name,
            kind="parameter" if name.startswith("parameter/") else "moment",
            dtype="float32",
            shape=list(snapshot.shapes[name]),
            lanes=f"{snapshot.lanes[name][0]:016x}{snapshot.lanes[name][1]:016x}",
            pieces=sorted(places, key=lambda place: place.start),
        )
        for name, places in by_tensor.items()
    ]
    return record.Manifest(
        step=snapshot.step,
        update_digest=snapshot.update_digest,
        experiment_digest=experiment_digest,
        math_digest=math_digest,
        dataset_digest=str(snapshot.scalars["cursor_dataset"]),
        fingerprint_digest=fingerprint_digest,
        tensors=tensors,
        scalars=dict(snapshot.scalars),
        parent=parent,
    )


def _publish(folder: Path, manifest: record.Manifest, nonce: str) -> None:
    """Manifest, then commit record, each whole and durable; checks first that every tensor is tiled."""
    data = record.encode_manifest(manifest)
    record.decode_manifest(data, folder / record.MANIFEST)
    sequence = record.next_sequence(record.list_generations(folder.parent))
    try:
        write_whole(folder / record.MANIFEST, data)
        entry = record.Commit(
            step=manifest.step,
            update_digest=manifest.update_digest,
            manifest_digest=record.manifest_digest(data),
            time_s=time.time(),
            nonce=nonce,
            sequence=sequence,
        )
        temporary = folder / f".{record.COMMIT}.new"
        write_whole(temporary, record.encode_commit(entry))
        os.link(temporary, folder / record.COMMIT)  # fails where one exists: a commit is made once
        temporary.unlink()
        sync_directory(folder)
    except OSError as error:
        raise write_failed(folder, error) from error
