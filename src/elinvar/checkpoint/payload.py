"""Whether the bytes of a generation are those that were written, told from hashes alone, without PyTorch."""

from pathlib import Path

from blake3 import blake3

from elinvar.errors import ElinvarError, Mismatch
from elinvar.identity import Digest
from elinvar.record.manifest import Generation, Piece, read_manifest


def is_sound(generation: Generation, math_digest: Digest | None = None) -> bool:
    """Whether manifest and every piece of the payload are as committed; reads all of it.

    With `math_digest`, that of the run's experiment, whether it is the run's own, too.
    """
    try:
        manifest = read_manifest(generation, math_digest)
        for entry in manifest.tensors:
            for piece in entry.pieces:
                read_verified(generation, entry.name, piece)
    except ElinvarError:
        return False
    return True


def read_verified(generation: Generation, tensor: str, piece: Piece) -> bytearray:
    """The bytes of one piece. Raises Mismatch, naming tensor and file, where they are not what was written."""
    data = _read(generation.path / piece.file, piece.offset, piece.length)
    if len(data) != piece.length or blake3(data).hexdigest() != piece.blake3:
        raise Mismatch(
            f"{generation.name}: {tensor}: the bytes in {piece.file} are not those that were written"
        )
    return data


def _read(path: Path, offset: int, length: int) -> bytearray:
    """Up to `length` bytes at `offset`; shorter where the file ends."""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return bytearray(file.read(length))
    except OSError as error:
        raise Mismatch(f"cannot read {path}: {error.strerror}") from None
