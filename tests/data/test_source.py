"""Reading text strictly: whatever is cut comes back whole, whatever is wrong is named by its place."""

import json
import os
from itertools import pairwise
from pathlib import Path

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from elinvar.data import source
from elinvar.data.source import cut, documents, pieces
from elinvar.errors import InvalidInput
from elinvar.spec.data import Data


def data_of(tmp_path, content, name="a.txt", **fields):
    path = tmp_path / name
    path.write_bytes(content)
    return Data(source=str(path), **fields)


@pytest.fixture
def small_pieces(monkeypatch):
    monkeypatch.setattr(source, "PIECE_CHARS", 7)


TEXTS = st.text(st.sampled_from(" \n\r\t\x0b\x1cab\u00a0\u2003é🎉\x00\ufeff'"), max_size=60)


@given(text=TEXTS)
def test_a_text_file_is_one_document_of_exactly_its_text(tmp_path, small_pieces, text):
    if not text.removeprefix("\ufeff"):
        return
    data = data_of(tmp_path, text.encode())
    read = list(pieces(data))
    assert "".join(piece.text for piece in read) == text.removeprefix("\ufeff")
    assert [piece.ends_document for piece in read] == [False] * (len(read) - 1) + [True]
    for before, after in pairwise(read):
        assert after.text[:1] in (" ", "\n", "")
        assert before.text and not before.text[-1].isspace()


@given(text=TEXTS)
def test_cutting_a_document_loses_nothing(small_pieces, text):
    parts = list(cut(text))
    assert "".join(part.text for part in parts) == text
    assert [part.ends_document for part in parts] == [False] * (len(parts) - 1) + [True]


def test_long_documents_are_really_cut(small_pieces, tmp_path):
    text = "one two three four five six\n" * 5
    assert len(list(cut(text))) > 10
    assert len(list(pieces(data_of(tmp_path, text.encode())))) > 5
    assert max(len(part.text) for part in cut(text)) <= 2 * 7
    assert [part.text for part in cut("x" * 50)] == ["x" * 50]


@given(texts=st.lists(TEXTS, min_size=1, max_size=6))
def test_json_lines_are_documents(tmp_path, texts):
    lines = [
        json.dumps({"id": 1, "text": text}, ensure_ascii=number % 2 == 0) for number, text in enumerate(texts)
    ]
    data = data_of(tmp_path, "\r\n\n".join(lines).encode(), "a.jsonl")
    if any(texts):
        assert list(documents(data)) == texts
    else:
        with pytest.raises(InvalidInput, match="is empty"):
            list(documents(data))


def test_line_ends_and_nul_stay_and_a_byte_order_mark_goes(tmp_path):
    assert list(documents(data_of(tmp_path, b"\xef\xbb\xbfa\r\nb\x00\r\n"))) == ["a\r\nb\x00\r\n"]
    assert list(documents(data_of(tmp_path, b'\xef\xbb\xbf{"text": "a"}', "a.jsonl"))) == ["a"]


def test_the_format_follows_the_name_unless_it_is_written(tmp_path):
    line = b'{"body": "x"}'
    assert list(documents(data_of(tmp_path, line, "a.ndjson", text_field="body"))) == ["x"]
    assert list(documents(data_of(tmp_path, line, "a.jsonl", format="text"))) == ['{"body": "x"}']
    assert list(documents(data_of(tmp_path, line, "a.txt", format="jsonl", text_field="body"))) == ["x"]


@pytest.mark.parametrize("block", [1, 2, 3, 5, 1000])
def test_bytes_that_are_not_utf8_are_named_by_line_and_offset(tmp_path, monkeypatch, block):
    monkeypatch.setattr(source, "PIECE_CHARS", block)
    data = data_of(tmp_path, "é\nab\ncd ".encode() + b"\xff tail")
    with pytest.raises(InvalidInput, match=r"a\.txt:3: byte 0xff at offset 9 is not UTF-8"):
        list(pieces(data))
    data = data_of(tmp_path, "ab\né".encode()[:-1])
    with pytest.raises(InvalidInput, match=r"a\.txt:2: byte 0xc3 at offset 3 is not UTF-8"):
        list(pieces(data))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b'{"text": "\xff"}', r":2: byte 0xff at offset 24 is not UTF-8"),
        (
            b'{"text": "a"',
            r":2 \(byte offset 14\): the line is no JSON: Expecting ',' delimiter at column 13",
        ),
        (b'["text"]', r":2 \(byte offset 14\): a JSON object with the field 'text' is needed, got a list"),
        (b"1" * 5000, r":2 \(byte offset 14\): the line cannot be read as JSON"),
        (b"[" * 100000, r":2 \(byte offset 14\): the line (cannot be read as|is no) JSON"),
        (
            b'{"txt": "a", "b": 1}',
            r":2 \(byte offset 14\): the field 'text' is missing\n  fields of this line: 'txt', 'b'",
        ),
        (b'{"text": 3}', r":2 \(byte offset 14\): the field 'text' must be a string, got a number"),
        (b'{"text": null}', r"must be a string, got null"),
        (b'{"text": true}', r"must be a string, got a boolean"),
        (rb'{"text": "a\ud83d"}', r"the field 'text' holds \\ud83d, half of a character"),
    ],
)
def test_a_wrong_line_of_json_is_named(tmp_path, line, said):
    data = data_of(tmp_path, b'{"text": "a"}\n' + line + b'\n{"text": "b"}\n', "a.jsonl")
    with pytest.raises(InvalidInput, match=said):
        list(documents(data))


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.txt", b""), ("a.txt", b"\xef\xbb\xbf"), ("a.jsonl", b"\n\n"), ("a.jsonl", b'{"text": ""}\n')],
)
def test_an_empty_corpus_is_refused(tmp_path, name, content):
    with pytest.raises(InvalidInput, match="is empty: it holds no text"):
        list(documents(data_of(tmp_path, content, name)))


def test_other_content_than_the_digest_says_is_refused(tmp_path):
    for name, content in (("a.txt", b"abc def"), ("a.jsonl", b'{"text": "a"}\n')):
        right = data_of(tmp_path, content, name, digest=blake3(content).hexdigest())
        assert list(documents(right))
        wrong = data_of(tmp_path, content.replace(b"a", b"b", 1), name, digest=right.digest)
        if name.endswith("jsonl"):
            (tmp_path / name).write_bytes(b'{"text": "b"}\n')
        with pytest.raises(InvalidInput, match="holds other data than the experiment names"):
            list(documents(wrong))


def test_missing_files_and_folders_are_refused(tmp_path):
    with pytest.raises(InvalidInput, match=r"none\.txt does not exist"):
        list(documents(Data(source=str(tmp_path / "none.txt"))))
    # A digest says that it was there once: a recorded run whose text moved, on a machine without its tokens.
    with pytest.raises(InvalidInput, match=r"elinvar train RUN\.toml data\.source=FILE --run DIR"):
        list(documents(Data(source=str(tmp_path / "none.txt"), digest="ab" * 32)))
    with pytest.raises(InvalidInput, match="is a folder"):
        list(documents(Data(source=str(tmp_path))))


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
def test_an_unreadable_file_is_refused(tmp_path):
    data = data_of(tmp_path, b"a")
    Path(data.source).chmod(0)
    with pytest.raises(InvalidInput, match="cannot be read: Permission denied"):
        list(documents(data))
