"""Looking through a whole store: what a digest cannot say.

Nouns: ids in use, the inner rules of a store. It reads in stretches, so memory does not grow with
the store.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elinvar.data import layout
from elinvar.data.store import Store
from elinvar.errors import Mismatch

_STRETCH = 2**22


def ids_used(store: Store) -> int:
    """How many different ids the store holds."""
    seen = np.zeros(store.tokenizer.vocab_size, dtype=bool)
    for stretch in _stretches(store):
        seen[stretch] = True
    return int(np.count_nonzero(seen))


def check_store(store: Store) -> None:
    """Check what an opened store promises beside its digests; raises Mismatch.

    Every id is one of the tokenizer's, the bytes add up, and each document begins where the one
    before it has ended.
    """
    tokenizer = store.tokenizer
    lengths = tokenizer.byte_lengths()
    num_bytes = 0
    ends: list[NDArray[np.int64]] = []
    first = 0
    for stretch in _stretches(store):
        largest = int(stretch.max())
        if largest >= tokenizer.vocab_size:
            raise Mismatch(
                f"{store.path / layout.TOKENS} holds id {largest}, its tokenizer has {len(lengths)}"
            )
        num_bytes += int(lengths[stretch].sum())
        ends.append(np.flatnonzero(stretch == tokenizer.end_of_document) + first)
        first += len(stretch)
    if num_bytes != store.num_bytes:
        raise Mismatch(
            f"{store.path} holds {num_bytes:,} bytes of text, its manifest says {store.num_bytes:,}"
        )
    stops = np.concatenate(ends) + 1
    starts = np.concatenate([np.zeros(1, dtype=np.int64), stops[:-1]])
    if int(stops[-1]) != store.num_tokens or not np.array_equal(starts, store.documents.astype(np.int64)):
        raise Mismatch(f"{store.path / layout.DOCUMENTS} does not say where the documents begin")


def _stretches(store: Store) -> Iterator[NDArray[Any]]:
    for start in range(0, store.num_tokens, _STRETCH):
        yield store.tokens[start : start + _STRETCH]
