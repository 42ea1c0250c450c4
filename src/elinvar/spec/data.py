"""What is learned from, and in which order. Part of an experiment.

Nouns: `Data` and its tokenizers `Bytes` and `ByteLevelBpe`. The digest names the content; the
source says where it lies and is no part of what is learned.
"""

from typing import Annotated, Literal

from msgspec import Meta, Struct


class Bytes(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="bytes"):
    """Each UTF-8 byte is a token (ids 0-255); id 256 ends a document."""


class ByteLevelBpe(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="bpe"
):
    """Byte-level byte-pair encoding trained on the source itself; the last id ends a document."""

    vocab_size: Annotated[int, Meta(ge=257, le=2**31)] = 1024


Tokenizer = Bytes | ByteLevelBpe


class Data(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One source of text, cut by concat-and-split into windows that the order permutes.

    `source` is `builtin:shakespeare`, a text file, a JSON-lines file or a folder made by
    `elinvar data build`. `digest` is the BLAKE3 of its content: resolved when absent, checked
    when written. `held_out` windows, spread evenly over the source, are never trained on.
    """

    source: str = "builtin:shakespeare"
    digest: str = ""
    format: Literal["auto", "text", "jsonl"] = "auto"
    text_field: str = "text"
    tokenizer: Tokenizer = ByteLevelBpe()
    order: Literal["shuffle", "sequential"] = "shuffle"
    held_out: Annotated[int, Meta(ge=0)] = 64
