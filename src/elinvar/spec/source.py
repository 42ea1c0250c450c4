"""Where data lies, and the digest that names its content.

Nouns: the source (`builtin:NAME`, a file, a store folder) and its content digest: the BLAKE3 of a
file's bytes, of a store folder's manifest, or a constant for what comes with the package. Refuses
sources that are missing, empty, or neither a file nor a store folder. It does not read the text.
"""

import stat
from collections.abc import Mapping
from pathlib import Path

from blake3 import blake3

from elinvar.errors import InvalidInput
from elinvar.identity import Digest
from elinvar.spec.explain import nearest

BUILTIN_PREFIX = "builtin:"
STORE_MANIFEST = "manifest.json"

BUILTIN: Mapping[str, Digest] = {
    "builtin:shakespeare": Digest("3e27b04ae319602efebc708c9bde800d89eb549e6ddcf3dea8f5fdfcc8fab969"),
}
"""The data that comes with the package, by name: the BLAKE3 of the plain text."""

_CHUNK_BYTES = 2**22


def is_builtin(source: str) -> bool:
    """Whether `source` names data that comes with the package."""
    return source.startswith(BUILTIN_PREFIX)


def content_digest(source: str) -> Digest:
    """The digest of what `source` holds; a path is taken relative to the working directory.

    Raises InvalidInput for an unknown builtin, a missing, empty or unreadable file, and a folder
    that is no store.
    """
    if is_builtin(source):
        if source not in BUILTIN:
            close = nearest(source, BUILTIN)
            lines = [f"the nearest is {close}"] if close else []
            raise InvalidInput(f"there is no data {source}", [*lines, f"known: {', '.join(BUILTIN)}"])
        return BUILTIN[source]
    path = Path(source)
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        raise InvalidInput(f"data source {source} does not exist", missing_file_hint(path)) from None
    except OSError as error:
        raise InvalidInput(f"data source {source} cannot be read: {error.strerror}") from None
    if stat.S_ISDIR(mode):
        manifest = path / STORE_MANIFEST
        if not manifest.is_file():
            raise InvalidInput(
                f"data source {source} is a folder without {STORE_MANIFEST}",
                [
                    f"allowed: a text file, a .jsonl file, a folder made by elinvar data build, {', '.join(BUILTIN)}"
                ],
            )
        return _digest_of_file(manifest, source)
    if not stat.S_ISREG(mode):
        raise InvalidInput(f"data source {source} is neither a file nor a folder")
    return _digest_of_file(path, source)


def missing_file_hint(path: Path) -> list[str]:
    """Lines that help with a path that does not exist: the nearest file name there, or the missing folder."""
    folder = path.parent
    if not folder.is_dir():
        return [f"the folder {folder} does not exist"]
    try:
        # By the stem alone first: endings are few, and an equal one makes any two short names look alike.
        names = [entry.name for entry in folder.iterdir() if nearest(path.stem, [entry.stem])]
        close = nearest(path.name, names)
    except OSError:
        return []  # A folder that cannot be listed has no name to offer.
    return [f"a file with a similar name exists: {folder / close}"] if close else []


def _digest_of_file(path: Path, source: str) -> Digest:
    digest = blake3()
    size_bytes = 0
    try:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
                size_bytes += len(chunk)
    except OSError as error:
        raise InvalidInput(f"data source {source} cannot be read: {error.strerror}") from None
    if size_bytes == 0:
        raise InvalidInput(f"data source {source} is empty: there is nothing to learn from")
    return Digest(digest.hexdigest())
