"""Curves that stay small and lose no spike.

Noun: a curve is two lists of one length, steps in strictly rising order and exact values (None:
no value). A thinned curve is a subset of its points: nothing is averaged, rounded or smoothed.
"""

from collections.abc import Sequence

LIMIT = 2000
"""Most points of one curve on a page."""


def thinned(values: Sequence[float | None], limit: int = LIMIT) -> list[int]:
    """Rising indices of at most `limit` values to draw; all of them where they are few enough.

    The first and the last value stay. What lies between is cut into equal buckets, and each keeps
    its least and greatest value and its first missing one, so that peaks and gaps stay where they are.
    """
    assert limit >= 5
    count = len(values)
    if count <= limit:
        return list(range(count))
    num_buckets = (limit - 2) // 3
    inner = count - 2
    kept = {0, count - 1}
    for bucket in range(num_buckets):
        start = 1 + inner * bucket // num_buckets
        stop = 1 + inner * (bucket + 1) // num_buckets
        present = [(value, index) for index in range(start, stop) if (value := values[index]) is not None]
        if present:
            kept.add(min(present)[1])
            kept.add(max(present)[1])
        if len(present) < stop - start:
            kept.add(next(index for index in range(start, stop) if values[index] is None))
    return sorted(kept)
