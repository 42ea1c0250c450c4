"""Microbatch (step, leaf) as a pure function of experiment and data.

Nouns: `Feed`, held-out leaves. Step s (the first is 1) consumes positions [(s-1)·S, s·S) of the
order, S sequences a step; its leaf i the i-th slice. Epochs wrap inside a step. Which rank or
worker asks, and what was asked before, changes nothing.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from elinvar.data.batch import Microbatch
from elinvar.data.cursor import Cursor
from elinvar.data.order import Order
from elinvar.data.store import Store
from elinvar.errors import InvalidInput, Mismatch
from elinvar.identity import Digest, Occurrence, SampleId
from elinvar.spec.experiment import Experiment

EVALUATION_STEP = 0
"""The `step` of held-out leaves, which no update has."""


@final
class Feed:
    """The microbatches of `experiment` from an opened store.

    Raises InvalidInput where the store has too few windows for one training sample beside the
    held-out ones, or more token ids than the model.
    """

    def __init__(self, store: Store, experiment: Experiment) -> None:
        self.store = store
        self.batch = experiment.batch
        self.seed = experiment.seed
        self._experiment = experiment
        data = experiment.data
        _check_vocabulary(store, experiment)
        num_windows = store.num_windows(self.batch.tokens_per_sequence)
        if num_windows <= data.held_out:
            raise _too_short(store, self.batch.tokens_per_sequence, data.held_out)
        self.order = Order(store.digest, num_windows, self.seed, data.order, data.held_out)

    @property
    def recipe(self) -> tuple[Path, Experiment, Digest]:
        """The arguments with which `reopen` makes this feed in another process."""
        return (self.store.path, self._experiment, self.store.digest)

    def __reduce__(self) -> tuple[Any, ...]:
        return (reopen, self.recipe)

    def training(self, step: int, index: int) -> Microbatch:
        """Leaf `index` (0 <= index < microbatches) of `step` (>= 1)."""
        assert step >= 1, step
        assert 0 <= index < self.batch.microbatches, index
        first = (step - 1) * self.batch.sequences + index * self.batch.sequences_per_microbatch
        occurrences = self.order.occurrences(first, first + self.batch.sequences_per_microbatch)
        tokens = self._tokens([occurrence.sample.index for occurrence in occurrences])
        return Microbatch(step, index, tokens, occurrences, self.seed)

    def held_out(self) -> list[Microbatch]:
        """The held-out samples, ascending, in leaves of the training shape.

        The last leaf is filled up with its own first sequence at weight 0. An occurrence's position
        is the number of its sample among the held-out ones. Empty where nothing is held out.
        """
        samples = self.order.split.held_out_samples
        size = self.batch.sequences_per_microbatch
        leaves = []
        for index, first in enumerate(range(0, len(samples), size)):
            chosen = samples[first : first + size]
            occurrences = tuple(
                Occurrence(SampleId(self.store.digest, sample), 0, first + place)
                for place, sample in enumerate(chosen)
            )
            num_missing = size - len(chosen)
            tokens = self._tokens([*chosen, *[chosen[0]] * num_missing])
            weights = None
            if num_missing:
                weights = np.ones((size, self.batch.tokens_per_sequence), dtype=np.float32)
                weights[len(chosen) :] = 0
            leaves.append(Microbatch(EVALUATION_STEP, index, tokens, occurrences, self.seed, weights))
        return leaves

    def start(self) -> Cursor:
        """The cursor of a run that has not learned anything."""
        return self.cursor_after(0)

    def cursor_after(self, step: int) -> Cursor:
        """The cursor when `step` is done."""
        return Cursor(dataset=self.store.digest, position=step * self.batch.sequences)

    def num_bytes(self, microbatch: Microbatch) -> int:
        """Bytes of text that the counted targets stand for, so that loss per byte is exact."""
        lengths = self._byte_lengths[microbatch.tokens_BT1[:, 1:]]
        if microbatch.weights_BT is not None:
            lengths = lengths[microbatch.weights_BT > 0]
        return int(lengths.sum())

    def text(self, sample: int, num_tokens: int | None = None) -> str:
        """The text of a sample's window, or of its first `num_tokens`; ends of documents show as a line."""
        ids = self.store.window(sample, self.batch.tokens_per_sequence)[:num_tokens].tolist()
        return self.store.text(ids)

    @cached_property
    def _byte_lengths(self) -> NDArray[np.int64]:
        return self.store.tokenizer.byte_lengths()

    def _tokens(self, samples: Sequence[int]) -> NDArray[np.int64]:
        length = self.batch.tokens_per_sequence
        tokens = np.empty((len(samples), length + 1), dtype=np.int64)
        for row, sample in enumerate(samples):
            tokens[row] = self.store.window(sample, length)
        return tokens


def reopen(path: Path, experiment: Experiment, dataset: Digest) -> Feed:
    """The feed of a store that another process has opened, and checked, as `dataset` before.

    Raises Mismatch where another data set lies there now.
    """
    store = Store.open(path, verify=False)
    if store.digest != dataset:
        raise Mismatch(f"the store {path} was replaced: it is {store.digest} now, it was {dataset}")
    return Feed(store, experiment)


def coordinates(
    feed: Feed, leaves: Sequence[int], cursor: Cursor, until_step: int
) -> Iterator[tuple[int, int]]:
    """(step, leaf) for `leaves`, in their order, from the cursor's step to `until_step`, both included."""
    first = cursor.next_step(feed.store.digest, feed.batch.sequences)
    return ((step, leaf) for step in range(first, until_step + 1) for leaf in leaves)


def _check_vocabulary(store: Store, experiment: Experiment) -> None:
    have, need = experiment.model.vocab_size, store.tokenizer.vocab_size
    if have < need:
        raise InvalidInput(
            f"experiment.model.vocab_size = {have} does not cover the data: its tokens have {need} ids",
            [f"allowed: {need} or more; or a tokenizer of at most {have} ids"],
        )


def _too_short(store: Store, tokens_per_sequence: int, held_out: int) -> InvalidInput:
    num_windows = store.num_windows(tokens_per_sequence)
    need = (held_out + 1) * tokens_per_sequence + 1
    lines = [f"{held_out} held out and 1 to train on need {need:,} tokens"]
    shorter = (store.num_tokens - 1) // (held_out + 1)
    if shorter >= 1:
        lines.append(f"experiment.batch.tokens_per_sequence = {shorter} or less would do")
    if num_windows >= 1:
        lines.append(f"experiment.data.held_out = {num_windows - 1} or less would do")
    if shorter < 1 and num_windows < 1:
        lines.append("more text is needed")
    return InvalidInput(
        f"the data are too short: {store.num_tokens:,} tokens make {num_windows} windows of {tokens_per_sequence}",
        lines,
    )
