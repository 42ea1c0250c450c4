"""The files of a store folder, and the digests that tie them together.

Nouns: `StoreManifest`, `StoreOrigin`, the five files.

    tokens.bin       every document's ids, each followed by the end of a document; little-endian
    documents.bin    position in tokens.bin of each document's first id; little-endian 64-bit
    tokenizer.json   Tokenizer.to_json()
    origin.json      what it was made from and with, under a checksum of its own
    manifest.json    what the first three hold: counts and digests, under a checksum of its own

The manifest names content alone, so the same text and tokenizer give the same manifest wherever they
were built; what may differ stands in the origin. The data set's digest covers the ids, the document starts and the tokenizer: content alone, never
the place or the source's name. A folder that differs from its manifest is a Mismatch.
"""

from pathlib import Path
from typing import Literal, TypeVar

import msgspec
import numpy as np
from blake3 import blake3

from elinvar.data.tokenize import Tokenizer
from elinvar.errors import InvalidInput, Mismatch
from elinvar.identity import Digest
from elinvar.spec.data import Tokenizer as Recipe
from elinvar.spec.source import STORE_MANIFEST

SCHEMA = 1
TOKENS = "tokens.bin"
DOCUMENTS = "documents.bin"
TOKENIZER = "tokenizer.json"
ORIGIN = "origin.json"
MANIFEST = STORE_MANIFEST

DOCUMENT_DTYPE = np.dtype("<u8")


class StoreManifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a store folder holds. `num_bytes` counts the text; ends of documents add tokens, but no bytes."""

    digest: Digest
    num_tokens: int
    num_bytes: int
    num_documents: int
    dtype: Literal["uint16", "uint32"]
    tokens_digest: Digest
    documents_digest: Digest
    tokenizer_digest: Digest
    tokenizer: Recipe

    @property
    def token_dtype(self) -> np.dtype[np.uint16] | np.dtype[np.uint32]:
        """Of tokens.bin, little-endian."""
        return np.dtype("<u2") if self.dtype == "uint16" else np.dtype("<u4")


class StoreOrigin(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a store comes from: the source's digest, how it was read, the library versions that built it."""

    source_digest: Digest
    source_format: Literal["text", "jsonl"]
    text_field: str
    versions: dict[str, str]


Sealed = TypeVar("Sealed", StoreManifest, StoreOrigin)


def dtype_for(vocab_size: int) -> Literal["uint16", "uint32"]:
    """The smaller type that holds every id."""
    return "uint16" if vocab_size <= 2**16 else "uint32"


def dataset_digest(tokens: Digest, documents: Digest, tokenizer: Digest) -> Digest:
    """The name of a data set: BLAKE3 over the digests of its ids, document starts and tokenizer."""
    text = f"elinvar data set 1\ntokens {tokens}\ndocuments {documents}\ntokenizer {tokenizer}\n"
    return Digest(blake3(text.encode("ascii")).hexdigest())


def write_origin(folder: Path, origin: StoreOrigin) -> None:
    """Write origin.json."""
    (folder / ORIGIN).write_bytes(_sealed(msgspec.to_builtins(origin)))


def write_manifest(folder: Path, manifest: StoreManifest) -> None:
    """Write manifest.json, as the last of the five."""
    (folder / MANIFEST).write_bytes(_sealed(msgspec.to_builtins(manifest)))


def read_origin(folder: Path) -> StoreOrigin:
    """The origin of a store folder; Mismatch where it is missing or damaged."""
    path = folder / ORIGIN
    try:
        data = path.read_bytes()
    except OSError as error:
        raise Mismatch(f"{path} is missing or unreadable: {error.strerror}") from None
    return _unsealed(path, data, StoreOrigin)


def read_manifest(folder: Path) -> StoreManifest:
    """The manifest of a store folder.

    Raises InvalidInput where there is none or of a later schema, Mismatch where it is damaged.
    """
    path = folder / MANIFEST
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise InvalidInput(f"{folder} is no data store: it has no {MANIFEST}", [_BUILD]) from None
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}") from None
    return _unsealed(path, data, StoreManifest)


def _unsealed(path: Path, data: bytes, kind: type[Sealed]) -> Sealed:
    try:
        tree = msgspec.json.decode(data)
    except msgspec.DecodeError as error:
        raise Mismatch(f"{path} is damaged: {error}") from None
    if not isinstance(tree, dict) or "schema" not in tree or "checksum" not in tree:
        raise InvalidInput(f"{path.parent} is no data store: its {path.name} is of something else", [_BUILD])
    if tree["schema"] != SCHEMA:
        raise InvalidInput(
            f"{path} has schema {tree['schema']}, this version of elinvar reads {SCHEMA}", [_BUILD]
        )
    body = {key: value for key, value in tree.items() if key not in ("schema", "checksum")}
    if _sealed(body) != data:
        raise Mismatch(f"{path} is damaged: it does not agree with its checksum")
    try:
        return msgspec.convert(body, kind)
    except msgspec.ValidationError as error:
        raise Mismatch(f"{path} is damaged: {error}") from None


_BUILD = "make one with: elinvar data build OUT --from FILE"


def _sealed(body: dict[str, object]) -> bytes:
    content = {"schema": SCHEMA, **body}
    checksum = blake3(msgspec.json.encode(content, order="sorted")).hexdigest()
    return (
        msgspec.json.format(msgspec.json.encode({**content, "checksum": checksum}, order="sorted"), indent=2)
        + b"\n"
    )


def check_sizes(folder: Path, manifest: StoreManifest) -> None:
    """Raise Mismatch where a file is missing or of another size than the manifest says."""
    expected = {
        TOKENS: manifest.num_tokens * manifest.token_dtype.itemsize,
        DOCUMENTS: manifest.num_documents * DOCUMENT_DTYPE.itemsize,
    }
    for name, size_bytes in expected.items():
        path = folder / name
        try:
            got = path.stat().st_size
        except OSError as error:
            raise Mismatch(f"{path} is missing or unreadable: {error.strerror}") from None
        if got != size_bytes:
            raise Mismatch(f"{path} holds {got:,} bytes, its manifest says {size_bytes:,}")


def read_tokenizer(folder: Path, manifest: StoreManifest) -> Tokenizer:
    """The store's tokenizer, after its digest was checked."""
    path = folder / TOKENIZER
    try:
        data = path.read_bytes()
    except OSError as error:
        raise Mismatch(f"{path} is missing or unreadable: {error.strerror}") from None
    _compare(path, manifest.tokenizer_digest, Digest(blake3(data).hexdigest()))
    return Tokenizer.from_json(data)


def check_content(folder: Path, manifest: StoreManifest) -> None:
    """Read the ids and the document starts and compare their digests; Mismatch where one differs."""
    _compare(folder / TOKENS, manifest.tokens_digest, file_digest(folder / TOKENS))
    _compare(folder / DOCUMENTS, manifest.documents_digest, file_digest(folder / DOCUMENTS))
    whole = dataset_digest(manifest.tokens_digest, manifest.documents_digest, manifest.tokenizer_digest)
    _compare(folder / MANIFEST, manifest.digest, whole)


def file_digest(path: Path) -> Digest:
    """BLAKE3 of a file, on all cores, without holding it in memory."""
    hasher = blake3(max_threads=blake3.AUTO)
    hasher.update_mmap(path)
    return Digest(hasher.hexdigest())


def _compare(path: Path, expected: Digest, got: Digest) -> None:
    if got != expected:
        raise Mismatch(f"{path} is damaged", [f"digest expected {expected}", f"digest found    {got}"])
