"""The feed: each microbatch by itself against the plain reading of the rules, and every refusal."""

import pickle

import msgspec
import numpy as np
import pytest

from elinvar.data.feed import Feed
from elinvar.data.store import open_store
from elinvar.errors import InvalidInput, Mismatch
from elinvar.spec.data import ByteLevelBpe


def rebuilt(feed, **batch):
    experiment = feed.recipe[1]
    return Feed(
        feed.store,
        msgspec.structs.replace(experiment, batch=msgspec.structs.replace(experiment.batch, **batch)),
    )


def same(a, b):
    assert (a.step, a.index, a.occurrences, a.seed) == (b.step, b.index, b.occurrences, b.seed)
    assert a.tokens_BT1.dtype == b.tokens_BT1.dtype == np.int64
    assert np.array_equal(a.tokens_BT1, b.tokens_BT1)
    assert (a.weights_BT is None) == (b.weights_BT is None)
    return True


def test_a_run_consumes_the_positions_in_order_and_every_token_as_stored(feed):
    batch = feed.batch
    tokens = feed.store.tokens.tolist()
    position = 0
    num_steps = 3 * feed.order.epoch_length // batch.sequences + 2  # more than two epochs
    seen = []
    for step in range(1, num_steps + 1):
        for index in range(batch.microbatches):
            microbatch = feed.training(step, index)
            assert (microbatch.step, microbatch.index, microbatch.seed) == (step, index, 7)
            assert microbatch.tokens_BT1.shape == (
                batch.sequences_per_microbatch,
                batch.tokens_per_sequence + 1,
            )
            assert microbatch.num_targets == batch.sequences_per_microbatch * batch.tokens_per_sequence
            assert microbatch.weights_BT is None
            for row, occurrence in zip(microbatch.tokens_BT1.tolist(), microbatch.occurrences, strict=True):
                assert occurrence == feed.order.sample(position)
                start = occurrence.sample.index * batch.tokens_per_sequence
                assert row == tokens[start : start + batch.tokens_per_sequence + 1]
                seen.append(occurrence.sample.index)
                position += 1
    length = feed.order.epoch_length
    assert sorted(seen[:length]) == sorted(seen[length : 2 * length]) == sorted(set(seen))
    assert seen[:length] != seen[length : 2 * length]
    assert not set(seen) & set(feed.order.split.held_out_samples)
    assert len(set(seen)) + feed.order.split.held_out == feed.store.num_windows(batch.tokens_per_sequence)


def test_microbatches_of_another_cut_hold_the_same_sequences_in_the_same_order(feed):
    whole = rebuilt(feed, microbatches=1, sequences_per_microbatch=6)
    for step in (1, 5):
        parts = [feed.training(step, index) for index in range(3)]
        one = whole.training(step, 0)
        assert np.array_equal(np.concatenate([part.tokens_BT1 for part in parts]), one.tokens_BT1)
        assert sum((part.occurrences for part in parts), ()) == one.occurrences


def test_what_was_asked_before_changes_nothing(feed):
    first = feed.training(9, 1)
    for step in (1, 30, 2):
        feed.training(step, 0)
    assert same(feed.training(9, 1), first)
    assert same(pickle.loads(pickle.dumps(feed)).training(9, 1), first)
    assert same(pickle.loads(pickle.dumps(first)), first)
    with pytest.raises(AttributeError):
        first.step = 3


def test_held_out_leaves_have_the_training_shape_and_count_each_sample_once(feed):
    leaves = feed.held_out()
    length = feed.batch.tokens_per_sequence
    assert [leaf.index for leaf in leaves] == [0, 1, 2]
    assert {leaf.step for leaf in leaves} == {0}
    assert {leaf.tokens_BT1.shape for leaf in leaves} == {(2, length + 1)}
    assert [o.sample.index for leaf in leaves for o in leaf.occurrences] == list(
        feed.order.split.held_out_samples
    )
    assert [o.position for leaf in leaves for o in leaf.occurrences] == list(range(5))
    assert [leaf.weights_BT is None for leaf in leaves] == [True, True, False]
    assert leaves[-1].weights_BT.dtype == np.float32
    assert leaves[-1].weights_BT.sum(axis=1).tolist() == [length, 0]
    assert sum(leaf.num_targets for leaf in leaves) == 5 * length
    alone = rebuilt(feed, sequences_per_microbatch=1)
    assert sum(map(feed.num_bytes, leaves)) == sum(map(alone.num_bytes, alone.held_out()))
    assert np.array_equal(leaves[-1].tokens_BT1[0], alone.held_out()[-1].tokens_BT1[0])


def test_no_held_out_samples_make_no_leaves(feed, data):
    experiment = msgspec.structs.replace(feed.recipe[1], data=msgspec.structs.replace(data, held_out=0))

    assert Feed(feed.store, experiment).held_out() == []


@pytest.mark.parametrize("vocab_size", [None, 275])
def test_bytes_are_those_of_the_counted_targets(feed, data, vocab_size):
    if vocab_size:
        data = msgspec.structs.replace(data, tokenizer=ByteLevelBpe(vocab_size=vocab_size))
        feed = Feed(open_store(data), msgspec.structs.replace(feed.recipe[1], data=data))
    total = 0
    num_windows = feed.order.split.num_samples
    for step in range(1, 40):
        for index in range(3):
            microbatch = feed.training(step, index)
            ids = microbatch.tokens_BT1[:, 1:]
            expected = sum(len(feed.store.tokenizer.decode_bytes(row)) for row in ids.tolist())
            assert feed.num_bytes(microbatch) == expected
            total += expected
    assert total
    targets = feed.store.tokens[1 : num_windows * feed.batch.tokens_per_sequence + 1].tolist()
    assert feed.store.tokenizer.num_bytes(targets) == len(feed.store.tokenizer.decode_bytes(targets))


def test_text_shows_where_documents_end(feed):
    texts = [feed.text(sample) for sample in range(feed.order.split.num_samples)]
    assert texts[0].startswith("Document 0:")
    assert any("─── end of document ───" in text for text in texts)
    assert feed.text(0, 8) == "Document"


def test_a_text_shorter_than_one_window_is_refused_with_what_would_do(feed):
    num_tokens = feed.store.num_tokens
    with pytest.raises(InvalidInput, match="make 0 windows of 100000") as caught:
        rebuilt(feed, tokens_per_sequence=100_000)
    shorter = (num_tokens - 1) // 6
    assert f"tokens_per_sequence = {shorter} or less would do" in str(caught.value)
    assert rebuilt(feed, tokens_per_sequence=shorter).order.epoch_length >= 1
    with pytest.raises(InvalidInput):
        rebuilt(feed, tokens_per_sequence=shorter + 1)


def test_more_held_out_windows_than_there_are_is_refused(feed, data):
    num_windows = feed.order.split.num_samples
    experiment = feed.recipe[1]

    def with_held_out(held_out):
        return Feed(
            feed.store,
            msgspec.structs.replace(experiment, data=msgspec.structs.replace(data, held_out=held_out)),
        )

    assert with_held_out(num_windows - 1).order.epoch_length == 1
    with pytest.raises(InvalidInput, match=f"held_out = {num_windows - 1} or less would do"):
        with_held_out(num_windows)


def test_a_model_with_too_few_ids_is_refused(feed):
    experiment = feed.recipe[1]
    small = msgspec.structs.replace(
        experiment, model=msgspec.structs.replace(experiment.model, vocab_size=256)
    )
    with pytest.raises(
        InvalidInput, match="vocab_size = 256 does not cover the data: its tokens have 257 ids"
    ):
        Feed(feed.store, small)


def test_a_feed_reopened_on_other_data_is_refused(feed, tmp_path):
    path, experiment, _ = feed.recipe
    from elinvar.data.feed import reopen

    with pytest.raises(Mismatch, match="was replaced"):
        reopen(path, experiment, "0" * 64)


def test_cursors_stand_after_steps(feed):
    assert feed.start().position == 0
    assert feed.cursor_after(4).position == 24
    assert feed.cursor_after(4).dataset == feed.store.digest
