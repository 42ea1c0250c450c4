"""The text of a data set, read strictly and in bounded memory.

Nouns: `Piece` (a part of a document), document. A text file is one document; each line of a
JSON-lines file is one, taken from the string under `text_field` (blank lines are no documents);
each play of `builtin:shakespeare` is one. A leading byte-order mark is an encoding sign and no text;
everything else is kept as it is: line ends (CRLF too), NUL, spaces, any Unicode form.

It refuses, with file, line and byte offset: bytes that are not UTF-8, a line that is no JSON object,
a field that is missing, no string, or holds a lone surrogate; and a source without any text or with
other content than its digest says.
"""

import codecs
import json
import lzma
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple

from blake3 import blake3

from elinvar.errors import InvalidInput
from elinvar.identity import Digest
from elinvar.spec.data import Data
from elinvar.spec.source import BUILTIN, is_builtin, missing_file_hint

DOCUMENT_BREAK = "\f\n"
"""Between two documents of an embedded corpus: a line that holds only a form feed."""

PIECE_CHARS = 2**20
"""Documents are cut into pieces of about this many characters, so that memory does not grow with them."""

_BYTE_ORDER_MARK = "\ufeff"
_JSONL_ENDINGS = (".jsonl", ".ndjson")


class Piece(NamedTuple):
    """A part of a document; the pieces up to and with one that `ends_document` make the document."""

    text: str
    ends_document: bool


def text_format(data: Data) -> Literal["text", "jsonl"]:
    """How the source is read: as `data.format` says, and "auto" by the ending of its name.

    InvalidInput where an embedded corpus, which is plain text, is asked for as JSON lines.
    """
    if is_builtin(data.source):
        if data.format == "jsonl":
            raise InvalidInput(
                f'{data.source} is plain text: experiment.data.format = "jsonl" cannot read it'
            )
        return "text"
    if data.format != "auto":
        return data.format
    return "jsonl" if data.source.endswith(_JSONL_ENDINGS) else "text"


def documents(data: Data) -> Iterator[str]:
    """Each document of `data` as one string, in the order of the source."""
    parts: list[str] = []
    for piece in pieces(data):
        parts.append(piece.text)
        if piece.ends_document:
            yield "".join(parts)
            parts = []


def pieces(data: Data) -> Iterator[Piece]:
    """The documents of `data` cut into pieces, each cut just before white space that follows other text.

    No tokenizer here lets a token reach over such a place, so pieces may be tokenized one by one.
    At the end the bytes read are compared with `data.digest`, where it is set. Raises InvalidInput.
    """
    read: Iterator[Piece]
    layout = text_format(data)
    if is_builtin(data.source):
        read = (piece for text in builtin_text(data.source).split(DOCUMENT_BREAK) for piece in cut(text))
    else:
        read = _file_pieces(data, layout)
    has_text = False
    for piece in read:
        has_text = has_text or bool(piece.text)
        yield piece
    if not has_text:
        raise InvalidInput(f"data source {data.source} is empty: it holds no text to learn from")


@cache
def builtin_text(source: str) -> str:
    """The text of an embedded corpus, after its digest was compared with the one that the code pins."""
    name = source.partition(":")[2]
    if source not in BUILTIN:
        raise InvalidInput(f"no data source is named {source}", [f"allowed: {', '.join(BUILTIN)}"])
    packed = (files("elinvar") / "data" / f"{name}.txt.xz").read_bytes()
    try:
        text = lzma.decompress(packed)
    except lzma.LZMAError as error:
        raise InvalidInput(f"the embedded corpus {source} is damaged: {error}", [_REINSTALL]) from None
    digest = blake3(text).hexdigest()
    if digest != BUILTIN[source]:
        lines = [f"digest expected {BUILTIN[source]}", f"digest of the file {digest}", _REINSTALL]
        raise InvalidInput(f"the embedded corpus {source} is damaged: its text has another digest", lines)
    return text.decode("utf-8")


_REINSTALL = "install elinvar again: pip install --force-reinstall --no-deps elinvar"


def cut(text: str) -> Iterator[Piece]:
    """A whole document as pieces."""
    start = 0
    while len(text) - start > PIECE_CHARS:
        place = _last_cut(text, start, start + PIECE_CHARS) or _first_cut(text, start + PIECE_CHARS)
        if place is None:
            break
        yield Piece(text[start:place], False)
        start = place
    yield Piece(text[start:] if start else text, True)


def _is_cut(text: str, place: int) -> bool:
    # Only blanks and newlines begin a piece, because every tokenizer calls them white space; Python's
    # isspace, which knows more kinds than any tokenizer, then makes sure that what goes before is none.
    return text[place] in " \n" and not text[place - 1].isspace()


def _last_cut(text: str, start: int, stop: int) -> int | None:
    """The last place in (start, stop) where a document may be cut."""
    place = stop
    while True:
        place = max(text.rfind(" ", start + 1, place), text.rfind("\n", start + 1, place))
        if place < 0:
            return None
        if _is_cut(text, place):
            return place


def _first_cut(text: str, start: int) -> int | None:
    """The first place from `start` on where a document may be cut."""
    place = start
    while True:
        found = [at for at in (text.find(" ", place), text.find("\n", place)) if at >= 0]
        if not found:
            return None
        place = min(found)
        if _is_cut(text, place):
            return place
        place += 1


def _file_pieces(data: Data, layout: str) -> Iterator[Piece]:
    path = Path(data.source)
    hasher = blake3()
    try:
        with path.open("rb") as file:
            reader = _jsonl_pieces if layout == "jsonl" else _text_pieces
            yield from reader(file, data, hasher)
    except (FileNotFoundError, NotADirectoryError):
        raise InvalidInput(f"data source {data.source} does not exist", _if_moved(data)) from None
    except IsADirectoryError:
        raise InvalidInput(f"data source {data.source} is a folder: a file of text is needed here") from None
    except OSError as error:
        raise InvalidInput(f"data source {data.source} cannot be read: {error.strerror}") from None
    digest = Digest(hasher.hexdigest())
    if data.digest and digest != data.digest:
        raise InvalidInput(
            f"data source {data.source} holds other data than the experiment names",
            [f"experiment.data.digest {data.digest}", f"digest of the file     {digest}"],
        )


def _if_moved(data: Data) -> list[str]:
    """Lines for a source that is not where it was; with a digest it was once, so it may lie elsewhere now."""
    found = missing_file_hint(Path(data.source))
    if data.digest:
        found += [
            "if it moved, name the new place; a run goes on with it, as only the content counts:",
            "elinvar train RUN.toml data.source=FILE --run DIR",
        ]
    return found


def _text_pieces(file: BinaryIO, data: Data, hasher: blake3) -> Iterator[Piece]:
    """One document from a file of text, read block by block."""
    rest, offset, line = b"", 0, 1
    carry = ""
    while True:
        block = file.read(PIECE_CHARS)
        hasher.update(block)
        buffer = rest + block
        try:
            text, used = codecs.utf_8_decode(buffer, "strict", not block)
        except UnicodeDecodeError as error:
            line += buffer.count(b"\n", 0, error.start)
            raise _not_utf8(data.source, line, offset + error.start, buffer[error.start]) from None
        if offset == 0 and used:
            text = text.removeprefix(_BYTE_ORDER_MARK)
        rest, offset, line = buffer[used:], offset + used, line + text.count("\n")
        if not block:
            yield Piece(carry + text, True)
            return
        seen, carry = len(carry), carry + text
        place = _last_cut(carry, max(seen - 1, 0), len(carry))
        if place is not None:
            yield Piece(carry[:place], False)
            carry = carry[place:]


def _jsonl_pieces(file: BinaryIO, data: Data, hasher: blake3) -> Iterator[Piece]:
    """One document from each line that is not blank."""
    offset = 0
    for number, line in enumerate(file, start=1):
        hasher.update(line)
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise _not_utf8(data.source, number, offset + error.start, line[error.start]) from None
        if number == 1:
            text = text.removeprefix(_BYTE_ORDER_MARK)
        if not text.isspace() and text:
            yield from cut(_field(text, data, f"{data.source}:{number} (byte offset {offset})"))
        offset += len(line)


def _field(line: str, data: Data, where: str) -> str:
    """The document in a line of JSON."""
    try:
        record = json.loads(line.rstrip())
    except json.JSONDecodeError as error:
        raise InvalidInput(f"{where}: the line is no JSON: {error.msg} at column {error.colno}") from None
    except (RecursionError, ValueError) as error:
        raise InvalidInput(f"{where}: the line cannot be read as JSON: {error}") from None
    if not isinstance(record, dict):
        raise InvalidInput(
            f"{where}: a JSON object with the field {data.text_field!r} is needed, got {_kind(record)}"
        )
    if data.text_field not in record:
        names = ", ".join(repr(name) for name in list(record)[:8]) or "none"
        raise InvalidInput(
            f"{where}: the field {data.text_field!r} is missing",
            [
                f"fields of this line: {names}",
                "name another one: experiment.data.text_field, or --text-field",
            ],
        )
    value = record[data.text_field]
    if not isinstance(value, str):
        raise InvalidInput(f"{where}: the field {data.text_field!r} must be a string, got {_kind(value)}")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        bad = f"\\u{ord(value[error.start]):04x}"
        raise InvalidInput(
            f"{where}: the field {data.text_field!r} holds {bad}, half of a character"
        ) from None
    return value


def _kind(value: object) -> str:
    """A JSON value's kind in JSON's own words."""
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


def _not_utf8(source: str, line: int, offset: int, byte: int) -> InvalidInput:
    return InvalidInput(
        f"{source}:{line}: byte 0x{byte:02x} at offset {offset} is not UTF-8",
        ["text must be UTF-8; convert it first, for example: iconv -f latin1 -t utf-8 OLD > NEW"],
    )
