"""Writes the files of a store from text, in bounded memory.

Nouns: the recipe (source and tokenizer), the batch of pieces. Documents are tokenized piece by
piece, each followed by the end of a document. The tokenizer is the one that comes with the package
where the recipe is the default one, else it is trained on the source, which is then read twice.
"""

import platform
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import assert_never

import numpy as np
from blake3 import blake3

from elinvar import __version__
from elinvar.data import layout
from elinvar.data.source import Piece, pieces, text_format
from elinvar.data.tokenize import Tokenizer, library_version, train
from elinvar.errors import InvalidInput
from elinvar.identity import Digest
from elinvar.spec.data import ByteLevelBpe, Bytes, Data

SHIPPED = {
    ("builtin:shakespeare", 1024): Digest("1b3d03c848586a93045ae21eeee65e5aca24b1a1f13ba261d19d61eee988bfaf")
}
"""Tokenizers that come with the package, trained as `train` would; a test trains them again."""

BATCH_CHARS = 2**22
"""Text tokenized at a time; the ids of one batch are the most that is held in memory."""


def tokenizer_recipe(data: Data) -> str:
    """Text that decides, with the source's content, which tokenizer `tokenizer_for` gives."""
    match data.tokenizer:
        case Bytes():
            return "bytes"
        case ByteLevelBpe(vocab_size=vocab_size):
            shipped = SHIPPED.get((data.source, vocab_size))
            # Another release of the library may find other merges, so it is part of the recipe.
            return f"shipped {shipped}" if shipped else f"bpe {vocab_size} tokenizers {library_version()}"
        case unknown:
            assert_never(unknown)


def tokenizer_for(data: Data) -> Tokenizer:
    """The tokenizer that `data` asks for; trained on the source where none is shipped."""
    match data.tokenizer:
        case Bytes():
            return Tokenizer()
        case ByteLevelBpe() as recipe:
            if (data.source, recipe.vocab_size) in SHIPPED:
                return shipped_tokenizer(data.source, recipe.vocab_size)
            return train(recipe, (piece.text for piece in pieces(data)), data.source)
        case unknown:
            assert_never(unknown)


@cache
def shipped_tokenizer(source: str, vocab_size: int) -> Tokenizer:
    """A tokenizer that comes with the package; InvalidInput where its file is damaged."""
    name = f"{source.partition(':')[2]}-bpe-{vocab_size}.json"
    text = (files("elinvar") / "data" / name).read_bytes()
    digest = blake3(text).hexdigest()
    if digest != SHIPPED[source, vocab_size]:
        raise InvalidInput(
            f"the tokenizer {name} that comes with elinvar is damaged",
            [f"digest expected {SHIPPED[source, vocab_size]}", f"digest of the file {digest}"],
        )
    return Tokenizer.from_json(text)


def build_store(data: Data, source_digest: Digest, folder: Path) -> layout.StoreManifest:
    """Write the five files into `folder`, which exists and is empty.

    Raises InvalidInput for bad text, OSError where the disk refuses.
    """
    tokenizer = tokenizer_for(data)
    dtype = layout.dtype_for(tokenizer.vocab_size)
    element = np.dtype("<u2") if dtype == "uint16" else np.dtype("<u4")
    lengths = tokenizer.byte_lengths()
    hasher = blake3()
    starts: list[int] = []
    num_tokens = num_bytes = 0
    at_start = True
    with (folder / layout.TOKENS).open("wb") as file:
        for batch in _batches(pieces(data)):
            encoded = tokenizer.encode_batch([piece.text for piece in batch])
            for piece, ids in zip(batch, encoded, strict=True):
                if at_start:
                    starts.append(num_tokens)
                at_start = piece.ends_document
                num_bytes += int(lengths[ids].sum())
                if at_start:
                    ids = np.append(ids, tokenizer.end_of_document)  # noqa: PLW2901 - the piece's ids, completed
                stored = ids.astype(element).tobytes()
                hasher.update(stored)
                file.write(stored)
                num_tokens += len(ids)
    documents = np.array(starts, dtype=layout.DOCUMENT_DTYPE).tobytes()
    (folder / layout.DOCUMENTS).write_bytes(documents)
    (folder / layout.TOKENIZER).write_bytes(tokenizer.to_json())
    tokens_digest = Digest(hasher.hexdigest())
    documents_digest = Digest(blake3(documents).hexdigest())
    manifest = layout.StoreManifest(
        digest=layout.dataset_digest(tokens_digest, documents_digest, tokenizer.digest),
        num_tokens=num_tokens,
        num_bytes=num_bytes,
        num_documents=len(starts),
        dtype=dtype,
        tokens_digest=tokens_digest,
        documents_digest=documents_digest,
        tokenizer_digest=tokenizer.digest,
        tokenizer=data.tokenizer,
    )
    origin = layout.StoreOrigin(
        source_digest=source_digest,
        source_format=text_format(data),
        text_field=data.text_field,
        versions={
            "elinvar": __version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
            "tokenizers": library_version(),
        },
    )
    layout.write_origin(folder, origin)
    layout.write_manifest(folder, manifest)
    return manifest


def _batches(source: Iterator[Piece]) -> Iterator[list[Piece]]:
    """The same pieces in lists of about BATCH_CHARS characters."""
    batch: list[Piece] = []
    size = 0
    for piece in source:
        batch.append(piece)
        size += len(piece.text) + 1
        if size >= BATCH_CHARS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
