"""What a generation holds and when it exists: `manifest.json` and `commit.json` of a checkpoint.

Nouns: `TensorEntry` and its `Piece`s (a logical tensor, and where its elements lie), `Manifest`,
`Commit`, `Generation` (a committed checkpoint). A generation exists when its `commit.json` is
there, parses, and names the digest of its manifest; anything else in the folder is incomplete and
is listed as that. This module reads no payload.
"""

import math
import os
from pathlib import Path
from typing import Annotated

import msgspec
from blake3 import blake3
from msgspec import Meta, Struct

from elinvar.errors import InvalidInput, Mismatch
from elinvar.identity import Digest
from elinvar.record.durable import read_failed

SCHEMA = 1
MANIFEST = "manifest.json"
COMMIT = "commit.json"

Hash = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
Lanes = Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]
Count = Annotated[int, Meta(ge=0)]
FileName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$")]
Scalar = int | float | str | bool | None


class Piece(Struct, frozen=True, kw_only=True):
    """Elements start ≤ i < stop of the flattened logical tensor: `length` bytes at `offset` of `file`.

    `file` lies in the generation's own folder; `blake3` is the hash of those bytes.
    """

    file: FileName
    offset: Count
    length: Count
    start: Count
    stop: Count
    blake3: Hash


class TensorEntry(Struct, frozen=True, kw_only=True):
    """One logical tensor, unsharded: what it is and where its pieces lie, in element order.

    `kind`: parameter · buffer · moment · master · average. `dtype` as torch writes it, without
    "torch.". `lanes`: the two 64-bit lanes of its digest, first lane first, 16 hex digits each.
    """

    name: str
    kind: str
    dtype: str
    shape: list[Count]
    lanes: Lanes
    pieces: list[Piece]

    @property
    def num_elements(self) -> int:
        """Elements of the logical tensor; 1 for a scalar."""
        return math.prod(self.shape)


class Manifest(Struct, frozen=True, kw_only=True):
    """Everything that the state after `step` consists of.

    `scalars` holds counters (step, cursor, optimizer step, …). `parent` is the folder name of the
    generation before it: the one that the same attempt committed last, for its first the one that it
    restored (in a fork, a generation of the parent run), None where it began fresh.
    """

    step: Count
    update_digest: Hash
    experiment_digest: Hash
    math_digest: Hash
    dataset_digest: Hash
    fingerprint_digest: Hash
    tensors: list[TensorEntry]
    scalars: dict[str, Scalar]
    parent: str | None = None
    run_id: str | None = None
    schema: int = SCHEMA


class Commit(Struct, frozen=True, kw_only=True):
    """The record that makes a generation exist. `sequence` grows by one from commit to commit of a folder."""

    step: Count
    update_digest: Hash
    manifest_digest: Hash
    time_s: float
    nonce: str
    sequence: Count
    schema: int = SCHEMA


class Generation(Struct, frozen=True, kw_only=True):
    """A committed checkpoint: the folder `path` and what its commit says."""

    path: Path
    step: int
    update_digest: Digest
    nonce: str
    sequence: int
    time_s: float
    manifest_digest: Digest

    @property
    def name(self) -> str:
        """Its folder name, by which everything refers to it."""
        return self.path.name


class Incomplete(Struct, frozen=True, kw_only=True):
    """A folder among the generations that is none, and why.

    `is_damaged`: its commit record is there, but cannot be read or is not its own. Without a commit
    record a folder was never a generation, or was retired: that is no damage.
    """

    path: Path
    reason: str
    is_damaged: bool = False

    @property
    def name(self) -> str:
        """Its folder name."""
        return self.path.name

    @property
    def step(self) -> int | None:
        """The step that its folder name says; None where it says none."""
        first = self.path.name.partition("-")[0]
        return int(first) if first.isascii() and first.isdigit() else None


def generation_name(step: int, update_digest: str, nonce: str) -> str:
    """`<step, 8 digits>-<update digest, 12>-<nonce, 8 hex>`: the folder name of a generation."""
    return f"{step:08d}-{update_digest[:12]}-{nonce}"


def encode_manifest(manifest: Manifest) -> bytes:
    """Its canonical bytes: sorted keys, no spaces. Their BLAKE3 is the manifest's digest."""
    return msgspec.json.encode(manifest, order="sorted") + b"\n"


def manifest_digest(data: bytes) -> Digest:
    """The digest of encoded manifest bytes, as a commit names it."""
    return Digest(blake3(data).hexdigest())


def decode_manifest(data: bytes, path: Path) -> Manifest:
    """The manifest in `data`; `path` is for the message. Raises InvalidInput: newer; Mismatch: damaged."""
    _check_schema(data, path)
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Mismatch(f"{path} is damaged: {error}") from None
    for entry in manifest.tensors:
        reason = _gap(entry)
        if reason:
            raise Mismatch(f"{path} is damaged: tensor {entry.name!r}: {reason}")
    return manifest


def encode_commit(commit: Commit) -> bytes:
    """Its canonical bytes."""
    return msgspec.json.encode(commit, order="sorted") + b"\n"


def read_manifest(generation: Generation, math_digest: Digest | None = None) -> Manifest:
    """The manifest of a generation, checked against its commit.

    With `math_digest`, that of the run's experiment, also against the run: a generation that was
    copied in from a run of something else is none of its own. Raises Mismatch where they do not
    agree and where the manifest is missing or cannot be read.
    """
    path = generation.path / MANIFEST
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise Mismatch(f"generation {generation.name} has lost its {MANIFEST}") from None
    except OSError as error:
        raise Mismatch(f"cannot read {path}: {_why(error)}") from None
    found = manifest_digest(data)
    if found != generation.manifest_digest:
        raise Mismatch(
            f"{path} is damaged: its digest is {found[:12]}, its commit names {generation.manifest_digest[:12]}"
        )
    manifest = decode_manifest(data, path)
    if (manifest.step, manifest.update_digest) != (generation.step, generation.update_digest):
        raise Mismatch(
            f"{path} is of step {manifest.step} and state {manifest.update_digest[:12]}, its commit of "
            f"step {generation.step} and state {generation.update_digest[:12]}"
        )
    if math_digest is not None and manifest.math_digest != math_digest:
        raise Mismatch(
            f"{generation.name}: belongs to another experiment: its math digest is "
            f"{manifest.math_digest[:12]}, this run's is {math_digest[:12]}"
        )
    return manifest


def list_generations(path: Path) -> list[Generation]:
    """The committed generations in folder `path` (`RunFolder.generations_path`), newest last.

    A missing folder has none. Raises InvalidInput where one was committed by a newer schema: to
    overlook it would mean to go on from an older state; DoesNotFit or StorageFailed where `path`
    itself cannot be read.
    """
    return _look(path)[0]


def list_incomplete(path: Path) -> list[Incomplete]:
    """The folders in `path` that are no generation, by name, each with the reason."""
    return _look(path)[1]


def next_sequence(generations: list[Generation]) -> int:
    """The sequence number of the next commit."""
    return 1 + max((generation.sequence for generation in generations), default=0)


def _look(path: Path) -> tuple[list[Generation], list[Incomplete]]:
    committed: list[Generation] = []
    incomplete: list[Incomplete] = []
    for folder in _folders(path):
        file = folder / COMMIT
        try:
            # Retention may take the commit away at any moment: absent, not damaged.
            data = file.read_bytes()
        except FileNotFoundError:
            incomplete.append(Incomplete(path=folder, reason=f"no {COMMIT}: never committed, or retired"))
            continue
        except OSError as error:
            incomplete.append(_damaged(folder, f"{COMMIT} cannot be read: {_why(error)}"))
            continue
        try:
            _check_schema(data, file)
            commit = msgspec.json.decode(data, type=Commit)
        except (msgspec.DecodeError, UnicodeDecodeError, Mismatch) as error:
            incomplete.append(_damaged(folder, f"{COMMIT} is damaged: {error}"))
            continue
        name = generation_name(commit.step, commit.update_digest, commit.nonce)
        if folder.name != name:
            incomplete.append(_damaged(folder, f"its {COMMIT} belongs to {name}"))
            continue
        committed.append(_generation(folder, commit))
    return sorted(committed, key=lambda g: (g.sequence, g.step, g.nonce)), incomplete


def _folders(path: Path) -> list[Path]:
    """The folders in `path` by name; none where it is missing."""
    try:
        return sorted(entry for entry in path.iterdir() if entry.is_dir()) if path.is_dir() else []
    except OSError as error:
        raise read_failed(path, error) from None


def _damaged(folder: Path, reason: str) -> Incomplete:
    return Incomplete(path=folder, reason=reason, is_damaged=True)


def _why(error: OSError) -> str:
    return os.strerror(error.errno) if error.errno else str(error)


def _generation(folder: Path, commit: Commit) -> Generation:
    return Generation(
        path=folder,
        step=commit.step,
        update_digest=Digest(commit.update_digest),
        nonce=commit.nonce,
        sequence=commit.sequence,
        time_s=commit.time_s,
        manifest_digest=Digest(commit.manifest_digest),
    )


class _Schema(Struct):
    schema: int


def _check_schema(data: bytes, path: Path) -> None:
    """Refuse a newer schema before its fields are looked at: they may have changed."""
    try:
        schema = msgspec.json.decode(data, type=_Schema).schema
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Mismatch(f"{path} is damaged: {error}") from None
    if schema > SCHEMA:
        raise InvalidInput(
            f"{path} has schema {schema}, newer than {SCHEMA}",
            ["use the version of Elinvar that wrote it, or a later one"],
        )


def _gap(entry: TensorEntry) -> str:
    """Why the pieces of `entry` are not exactly its elements in order; "" where they are."""
    reached = 0
    for piece in entry.pieces:
        if piece.start != reached or piece.stop < piece.start:
            return f"piece {piece.start}:{piece.stop} follows element {reached}"
        reached = piece.stop
    if reached != entry.num_elements:
        return f"its pieces end at element {reached} of {entry.num_elements}"
    return ""
