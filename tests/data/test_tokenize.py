"""Tokenizing: lossless, deterministic, and the end of a document that no text can write."""

import json
import os
import pickle
import subprocess
import sys
from itertools import pairwise

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from elinvar.data import source
from elinvar.data.build import shipped_tokenizer
from elinvar.data.source import cut
from elinvar.data.tokenize import Tokenizer, train
from elinvar.errors import InvalidInput
from elinvar.spec.data import ByteLevelBpe

BPE = shipped_tokenizer("builtin:shakespeare", 1024)
BYTES = Tokenizer()
ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=80) | st.text(
    st.sampled_from(" \n\r\t\x00the 's'll\u00a0\u3000é🎉'<|>"), max_size=80
)


@given(text=ANY_TEXT)
def test_every_text_comes_back(text):
    for tokenizer in (BPE, BYTES):
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        assert tokenizer.num_bytes(ids) == len(text.encode())
        assert tokenizer.end_of_document not in ids


def reference_ids(tokenizer, word):
    """The slow twin: from bytes, apply the merge of lowest rank again and again, from the left."""
    ranks = {pair: rank for rank, pair in reversed(list(enumerate(tokenizer.merges)))}
    ids = {value: index for index, value in reversed(list(enumerate(tokenizer.token_bytes)))}
    parts = list(word)
    while True:
        pairs = [(ranks[pair], at) for at, pair in enumerate(pairwise(parts)) if pair in ranks]
        if not pairs:
            return parts
        _, at = min(pairs)
        parts[at : at + 2] = [ids[tokenizer.token_bytes[parts[at]] + tokenizer.token_bytes[parts[at + 1]]]]


@given(word=st.text(st.sampled_from("aehinorst"), min_size=1, max_size=14))
def test_merges_are_applied_as_the_slow_twin_does(word):
    assert BPE.encode(word) == reference_ids(BPE, word.encode())
    assert BPE.encode(f" {word}") == reference_ids(BPE, f" {word}".encode())


SPACES = train(ByteLevelBpe(vocab_size=265), ["a  b\n\nc   d\n \ne\t\tf  \n\n g" * 20], "spaces")


@given(text=(ANY_TEXT | st.text(st.sampled_from(" \n\tab"), max_size=40)).map(lambda text: text * 3))
def test_cut_documents_have_the_ids_of_whole_ones(text):
    size = source.PIECE_CHARS
    source.PIECE_CHARS = 5
    try:
        parts = [piece.text for piece in cut(text)]
    finally:
        source.PIECE_CHARS = size
    for tokenizer in (BPE, SPACES, BYTES):
        assert [index for ids in tokenizer.encode_batch(parts) for index in ids.tolist()] == tokenizer.encode(
            text
        )


def test_ids_of_bytes_are_the_bytes_and_the_last_id_ends_a_document():
    assert BYTES.vocab_size == 257
    assert BYTES.end_of_document == 256
    assert BYTES.encode("aé") == [97, 0xC3, 0xA9]
    assert BPE.vocab_size == 1024
    assert BPE.end_of_document == 1023
    assert BPE.token_bytes[:256] == tuple(bytes([value]) for value in range(256))
    assert BPE.decode([72, 1023, 105]) == "Hi"
    assert BPE.num_bytes([72, 1023, 105]) == 2
    assert BPE.decode([0xC3]) == "\ufffd"
    for text in ("<|endoftext|>", "<|end_of_document|>", "</s>"):
        assert 1023 not in BPE.encode(text)


def test_json_is_the_whole_tokenizer():
    again = Tokenizer.from_json(BPE.to_json())
    assert again.digest == BPE.digest
    assert again.encode("To be, or not") == BPE.encode("To be, or not")
    assert pickle.loads(pickle.dumps(BPE)).digest == BPE.digest


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schema": 2}, "schema 2"),
        ({"split": "other"}, "split 'other'"),
        ({"vocab_size": 1025}, "says 1025 ids, but its merges give 1024"),
        ({"merges": [[0, 900]]}, "names an id that does not exist yet"),
        ({"merges": 3}, "this is no tokenizer"),
    ],
)
def test_other_json_is_refused(change, said):
    value = json.loads(BPE.to_json()) | change
    with pytest.raises(InvalidInput, match=said):
        Tokenizer.from_json(json.dumps(value).encode())
    with pytest.raises(InvalidInput, match="this is no tokenizer"):
        Tokenizer.from_json(b"{")


def test_two_merges_of_one_spelling_share_an_id():
    a, b, c = b"abc"
    tokenizer = Tokenizer([(a, b), (b, c), (256, c), (a, 257)])
    assert tokenizer.vocab_size == 256 + 3 + 1
    assert tokenizer.token_bytes[258] == b"abc"
    assert tokenizer.encode("abc") == [258]
    assert Tokenizer.from_json(tokenizer.to_json()).digest == tokenizer.digest


def test_half_a_character_is_refused():
    for tokenizer in (BPE, BYTES):
        with pytest.raises(InvalidInput, match="cannot be tokenized"):
            tokenizer.encode("a\ud83d")


TEXTS = ["the cat sat on the mat, the cat", "that hat, the théâtre", "and then the other 12 12 12"]


def test_training_is_the_same_in_any_order_and_chunks():
    trained = train(ByteLevelBpe(vocab_size=280), TEXTS, "x")
    assert trained.vocab_size == 280
    assert trained.digest == train(ByteLevelBpe(vocab_size=280), reversed(TEXTS), "x").digest
    chunks = [part for text in TEXTS for part in text.replace(" ", "\x01 ").split("\x01")]
    assert trained.digest == train(ByteLevelBpe(vocab_size=280), chunks, "x").digest


def test_training_and_encoding_are_the_same_with_threads():
    script = (
        "import sys; from elinvar.data.tokenize import train; from elinvar.spec.data import ByteLevelBpe\n"
        "from elinvar.data.source import builtin_text\n"
        "texts = builtin_text('builtin:shakespeare')[:60_000].split('\\n\\n')\n"
        "t = train(ByteLevelBpe(vocab_size=600), texts, 'x')\n"
        "print(t.digest, hash(tuple(i for ids in t.encode_batch(texts) for i in ids.tolist())))"
    )
    answers = set()
    for parallel, threads in (("false", "1"), ("true", "4")):
        environment = os.environ | {"TOKENIZERS_PARALLELISM": parallel, "RAYON_NUM_THREADS": threads}
        done = subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
        )
        answers.add(done.stdout)
    assert len(answers) == 1


def test_a_text_with_too_few_merges_is_refused_by_the_size_that_it_reaches():
    with pytest.raises(InvalidInput, match="vocab_size = 300") as caught:
        train(ByteLevelBpe(vocab_size=300), ["ab ab"], "tiny.txt")
    assert "tiny.txt is too small" in str(caught.value)
    assert "vocab_size 257 to 259" in str(caught.value)
    assert train(ByteLevelBpe(vocab_size=259), ["ab ab"], "tiny.txt").token_bytes[256:] == (b"ab", b" ab")
    assert train(ByteLevelBpe(vocab_size=257), ["ab ab"], "tiny.txt").digest == BYTES.digest


def test_the_library_reads_the_exported_file_alike():
    library = tokenizers.Tokenizer.from_str(BPE.library_json())
    text = "O Romeo, Romeo! 'tis é 🎉  \n"
    assert library.encode(text).ids == BPE.encode(text)
    assert library.token_to_id("<|end_of_document|>") == BPE.end_of_document
    assert library.get_vocab_size() == BPE.vocab_size
