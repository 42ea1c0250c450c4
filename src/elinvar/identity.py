"""The names of things that are compared, counted and audited: digests, samples, occurrences.

Nouns: `Digest`, `SampleId`, `Occurrence`. This module imports nothing of ours and holds no logic
beyond checking that a name is well formed.
"""

import re
from typing import NamedTuple, NewType

Digest = NewType("Digest", str)
"""A content hash: 64 lowercase hexadecimal digits (BLAKE3-256)."""

_DIGEST = re.compile(r"[0-9a-f]{64}")


def is_digest(text: str) -> bool:
    """Whether `text` has the form of a digest: 64 lowercase hexadecimal digits."""
    return _DIGEST.fullmatch(text) is not None


class SampleId(NamedTuple):
    """Which sample: the digest of its data set, and its index there (0 <= index < num_samples)."""

    dataset: Digest
    index: int  # type: ignore[assignment]  # tuple.index gives way to the word of the field


class Occurrence(NamedTuple):
    """A sample at a place in the order: `position` counts from 0 over the whole run, `epoch` from 0."""

    sample: SampleId
    epoch: int
    position: int
