"""Retention: the newest `keep` generations stay. The only place where a run folder loses a file.

The commit record goes first, so that a half-removed generation is no generation.
"""

import shutil
from pathlib import Path

from elinvar.errors import ElinvarError, StorageFailed
from elinvar.record.durable import sync_directory, write_failed
from elinvar.record.manifest import COMMIT, Generation, list_generations, read_manifest


def retain(generations: Path, keep: int) -> list[Generation]:
    """Remove all but the newest `keep` (at least 2) committed generations whose manifests verify.

    A generation that does not verify counts as no copy: it is left alone and protects no other's
    place. Returns what was removed. Raises StorageFailed where the disk refuses.
    """
    assert keep >= 2
    sound = [generation for generation in list_generations(generations) if _verifies(generation)]
    removed = sound[:-keep]
    for generation in removed:
        try:
            (generation.path / COMMIT).unlink()
            sync_directory(generation.path)
            shutil.rmtree(generation.path)
        except OSError as error:
            raise write_failed(generation.path, error) from error
    return removed


def _verifies(generation: Generation) -> bool:
    """Whether manifest and payload sizes are as committed (contents are read by `checkpoint check`)."""
    try:
        manifest = read_manifest(generation)
    except StorageFailed:
        raise
    except ElinvarError:
        return False
    ends: dict[str, int] = {}
    for entry in manifest.tensors:
        for piece in entry.pieces:
            ends[piece.file] = max(ends.get(piece.file, 0), piece.offset + piece.length)
    return all(
        (generation.path / name).is_file() and (generation.path / name).stat().st_size >= end
        for name, end in ends.items()
    )
