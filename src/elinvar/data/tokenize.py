"""Text to token ids and back, without loss.

Nouns: `Tokenizer`, a byte-level BPE. Ids 0-255 are the bytes themselves, each merge of two earlier
ids makes the next id, and the last id ends a document. With no merge it is the tokenizer of bytes.
No text encodes to the end of a document, whatever it says; nothing is normalised, so every text
comes back byte for byte.

A tokenizer is its list of merges, so its digest does not depend on the library that trained it; the
`tokenizers` library is only asked to find merges and to apply them, and only imported for that: an
input worker never needs it. It refuses to pretend: a text
that has fewer merges than asked for is an error that names the size that can be reached.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from importlib.metadata import version
from typing import Any, final

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from elinvar.errors import InvalidInput
from elinvar.identity import Digest
from elinvar.spec.data import ByteLevelBpe

NUM_BYTES = 256
SCHEMA = 1

Merges = Sequence[tuple[int, int]]


@final
class Tokenizer:
    """A byte-level BPE given by its merges: `merges[i]` joins two ids, in order of rank.

    Text is first split into words, numbers, punctuation and white space by the rule of GPT-2 (the
    `ByteLevel` splitter of the `tokenizers` library); no token reaches over such a border.
    """

    def __init__(self, merges: Merges = ()) -> None:
        token_bytes = [bytes([value]) for value in range(NUM_BYTES)]
        ids = {value: index for index, value in enumerate(token_bytes)}
        for left, right in merges:
            if not (0 <= left < len(token_bytes) and 0 <= right < len(token_bytes)):
                raise InvalidInput(
                    f"a tokenizer's merge ({left}, {right}) names an id that does not exist yet"
                )
            joined = token_bytes[left] + token_bytes[right]
            # Two merges may spell the same token ("ab"+"c", "a"+"bc"): it keeps its first id.
            if joined not in ids:
                ids[joined] = len(token_bytes)
                token_bytes.append(joined)
        self.merges: tuple[tuple[int, int], ...] = tuple((left, right) for left, right in merges)
        self.token_bytes: tuple[bytes, ...] = tuple(token_bytes)
        self._lengths = np.array([len(value) for value in token_bytes] + [0], dtype=np.int64)

    def __reduce__(self) -> tuple[Any, ...]:
        return (Tokenizer, (self.merges,))

    @property
    def vocab_size(self) -> int:
        """Number of ids, the end of a document included."""
        return len(self.token_bytes) + 1

    @property
    def end_of_document(self) -> int:
        """The last id."""
        return len(self.token_bytes)

    @cached_property
    def digest(self) -> Digest:
        """BLAKE3 of `to_json()`."""
        return Digest(blake3(self.to_json()).hexdigest())

    def encode(self, text: str) -> list[int]:
        """The ids of `text`; never the end of a document. InvalidInput where text holds a lone surrogate."""
        ids: list[int] = self.encode_batch([text])[0].tolist()
        return ids

    def encode_batch(self, texts: Sequence[str]) -> list[NDArray[np.int64]]:
        """The ids of each text."""
        try:
            encoded = [text.encode("utf-8") for text in texts]
        except UnicodeEncodeError as error:
            raise InvalidInput(
                f"text cannot be tokenized: {error.reason} at character {error.start}"
            ) from None
        if not self.merges:
            return [np.frombuffer(text, dtype=np.uint8).astype(np.int64) for text in encoded]
        encodings = self._library.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(encoding.ids, dtype=np.int64) for encoding in encodings]

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """The bytes that `ids` stand for; the end of a document is none."""
        table = (*self.token_bytes, b"")
        return b"".join(table[index] for index in ids)

    def decode(self, ids: Iterable[int]) -> str:
        """As text; bytes that are no whole character (a cut inside one) show as U+FFFD."""
        return self.decode_bytes(ids).decode("utf-8", errors="replace")

    def num_bytes(self, ids: NDArray[Any] | Sequence[int]) -> int:
        """How many bytes of text `ids` stand for, exactly; an end of a document is 0."""
        return int(self._lengths[np.asarray(ids, dtype=np.int64)].sum())

    def byte_lengths(self) -> NDArray[np.int64]:
        """Bytes of text by id, shape [vocab_size]."""
        return self._lengths.copy()

    def to_json(self) -> bytes:
        """The one byte form of this tokenizer."""
        value = {"schema": SCHEMA, "split": "gpt2", "vocab_size": self.vocab_size, "merges": self.merges}
        return json.dumps(value, sort_keys=True, separators=(",", ":")).encode("ascii")

    @classmethod
    def from_json(cls, data: bytes) -> "Tokenizer":
        """The tokenizer of `to_json()`; InvalidInput for anything else."""
        try:
            value = json.loads(data)
            schema, split, vocab_size = value["schema"], value["split"], value["vocab_size"]
            merges = [(int(left), int(right)) for left, right in value["merges"]]
        except (ValueError, KeyError, TypeError) as error:
            raise InvalidInput(f"this is no tokenizer of elinvar: {error}") from None
        if (schema, split) != (SCHEMA, "gpt2"):
            raise InvalidInput(
                f"a tokenizer of schema {schema}, split {split!r}; schema {SCHEMA}, 'gpt2' is known"
            )
        tokenizer = cls(merges)
        if tokenizer.vocab_size != vocab_size:
            raise InvalidInput(
                f"a tokenizer says {vocab_size} ids, but its merges give {tokenizer.vocab_size}"
            )
        return tokenizer

    def library_json(self) -> str:
        """This tokenizer in the file format of the `tokenizers` library (`tokenizer.json`)."""
        import tokenizers

        library = _library(self.token_bytes, self.merges)
        library.add_special_tokens(
            [tokenizers.AddedToken("<|end_of_document|>", special=True, normalized=False)]
        )
        text: str = library.to_str(pretty=True)
        return text

    @cached_property
    def _library(self) -> Any:
        return _library(self.token_bytes, self.merges)


def library_version() -> str:
    """The release of the `tokenizers` library here."""
    return version("tokenizers")


def train(recipe: ByteLevelBpe, texts: Iterable[str], source: str) -> Tokenizer:
    """The merges of `texts` for `recipe.vocab_size` ids: the same for the same texts in any order or chunks.

    InvalidInput, naming `source` and the size that can be reached, where the texts hold too few
    different pairs.
    """
    import tokenizers
    from tokenizers import models, pre_tokenizers, trainers

    library = tokenizers.Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    trainer = trainers.BpeTrainer(
        vocab_size=recipe.vocab_size - 1,
        min_frequency=0,
        special_tokens=[],
        initial_alphabet=sorted(_ALPHABET),
        show_progress=False,
    )
    library.train_from_iterator(iter(texts), trainer)
    tokenizer = Tokenizer(_merges_of(library))
    if tokenizer.vocab_size != recipe.vocab_size:
        raise InvalidInput(
            f"{source} is too small for experiment.data.tokenizer.vocab_size = {recipe.vocab_size}",
            [
                f"its text has merges for {tokenizer.vocab_size} ids, the end of a document included",
                f'allowed: vocab_size 257 to {tokenizer.vocab_size}, or experiment.data.tokenizer = {{kind = "bytes"}}',
            ],
        )
    return tokenizer


def _alphabet() -> Iterator[str]:
    """The character by which the library writes each byte: itself where it prints, else one from U+0100 on."""
    spare = NUM_BYTES
    for value in range(NUM_BYTES):
        if 33 <= value <= 126 or 161 <= value <= 172 or 174 <= value <= 255:
            yield chr(value)
        else:
            yield chr(spare)
            spare += 1


_ALPHABET = tuple(_alphabet())


def _spelled(token: bytes) -> str:
    return "".join(_ALPHABET[value] for value in token)


def _library(token_bytes: Sequence[bytes], merges: Merges) -> Any:
    import tokenizers
    from tokenizers import models, pre_tokenizers

    names = [_spelled(token) for token in token_bytes]
    vocabulary = {name: index for index, name in enumerate(names)}
    library = tokenizers.Tokenizer(
        models.BPE(vocabulary, [(names[left], names[right]) for left, right in merges])
    )
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    return library


def _merges_of(library: Any) -> list[tuple[int, int]]:
    """The merges that the library found, as pairs of our ids."""
    ids = {character: value for value, character in enumerate(_ALPHABET)}
    merges = []
    for left, right in json.loads(library.to_str())["model"]["merges"]:
        merges.append((ids[left], ids[right]))
        ids.setdefault(left + right, len(ids))
    return merges
