"""Where each key of a TOML text stands.

Noun: the position, (line, column) counted from 1 in characters. The standard parser returns values
without places, so this scanner walks the same text again and notes only keys. It reads text that
`tomllib` accepted; on other text it stops at the first thing it does not understand, and what it
found until then stands. It computes no values.
"""

import contextlib
from typing import NamedTuple

Path = tuple[str | int, ...]
"""A key path; an int is an index into an array."""

_BARE_END = set(" \t\r\n.=]},#\"'")


class Mark(NamedTuple):
    """One place where a key is written: `defines` is false for the leading parts of a dotted key or header."""

    path: Path
    line: int
    column: int
    defines: bool


def positions(text: str) -> dict[Path, tuple[int, int]]:
    """(line, column) of every key in `text`: where it is defined, else where it is first mentioned."""
    found: dict[Path, tuple[int, int]] = {}
    defined: set[Path] = set()
    for mark in marks(text):
        if mark.path not in found or (mark.defines and mark.path not in defined):
            found[mark.path] = (mark.line, mark.column)
        if mark.defines:
            defined.add(mark.path)
    return found


def marks(text: str) -> list[Mark]:
    """Every mention of a key in `text`, in the order of the text."""
    scanner = _Scanner(text.replace("\r\n", "\n"))
    # The text may end inside something: tomllib refuses it with its own words.
    with contextlib.suppress(IndexError):
        scanner.document()
    return scanner.marks


class _Scanner:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.line = 1
        self.line_start = 0
        self.marks: list[Mark] = []
        self.array_tables: dict[Path, int] = {}

    def document(self) -> None:
        table: Path = ()
        while True:
            self._skip_blank(newlines=True)
            if self.at >= len(self.text):
                return
            before = self.at
            if self.text[self.at] == "[":
                table = self._header()
            else:
                self._assignment(table)
            if self.at == before:
                return

    def _header(self) -> Path:
        is_array = self.text.startswith("[[", self.at)
        self._advance(2 if is_array else 1)
        names = self._key_parts()
        self._advance(2 if is_array else 1)
        path: Path = ()
        for place, (name, line, column) in enumerate(names):
            path = (*path, name)
            last = place == len(names) - 1
            if last and is_array:
                self.array_tables[path] = self.array_tables.get(path, -1) + 1
                if self.array_tables[path] == 0:
                    self.marks.append(Mark(path, line, column, False))
            else:
                self.marks.append(Mark(path, line, column, last))
            if path in self.array_tables:
                path = (*path, self.array_tables[path])
                if last:
                    self.marks.append(Mark(path, line, column, True))
        return path

    def _assignment(self, table: Path) -> None:
        names = self._key_parts()
        path = table
        for place, (name, line, column) in enumerate(names):
            path = (*path, name)
            self.marks.append(Mark(path, line, column, place == len(names) - 1))
        self._skip_blank()
        if self.text[self.at] == "=":
            self._advance(1)
            self._skip_blank()
            self._value(path)

    def _key_parts(self) -> list[tuple[str, int, int]]:
        parts: list[tuple[str, int, int]] = []
        while True:
            self._skip_blank()
            line, column = self.line, self.at - self.line_start + 1
            if self.text[self.at] in "\"'":
                name = self._quoted_key()
            else:
                start = self.at
                while self.at < len(self.text) and self.text[self.at] not in _BARE_END:
                    self.at += 1
                name = self.text[start : self.at]
            parts.append((name, line, column))
            self._skip_blank()
            if self.text[self.at] != ".":
                return parts
            self._advance(1)

    def _quoted_key(self) -> str:
        start = self.at
        self._string()
        raw = self.text[start : self.at]
        if raw[0] == "'":
            return raw[1:-1]
        return _unescaped(raw[1:-1])

    def _value(self, path: Path) -> None:
        first = self.text[self.at]
        if first in "\"'":
            self._string()
        elif first == "[":
            self._array(path)
        elif first == "{":
            self._inline_table(path)
        else:
            while self.at < len(self.text) and self.text[self.at] not in ",]}#\n":
                self.at += 1

    def _array(self, path: Path) -> None:
        self._advance(1)
        index = 0
        while True:
            self._skip_blank(newlines=True)
            if self.text[self.at] == "]":
                return self._advance(1)
            if self.text[self.at] == ",":
                self._advance(1)
                continue
            before = self.at
            self._value((*path, index))
            index += 1
            if self.at == before:
                raise IndexError("not TOML")

    def _inline_table(self, path: Path) -> None:
        self._advance(1)
        while True:
            self._skip_blank(newlines=True)
            if self.text[self.at] == "}":
                return self._advance(1)
            if self.text[self.at] == ",":
                self._advance(1)
                continue
            before = self.at
            self._assignment(path)
            if self.at == before:
                raise IndexError("not TOML")

    def _string(self) -> None:
        quote = self.text[self.at]
        fence = quote * 3
        if not self.text.startswith(fence, self.at):
            self._advance(1)
            while self.text[self.at] != quote:
                self._advance(2 if quote == '"' and self.text[self.at] == "\\" else 1)
            return self._advance(1)
        self._advance(3)
        while not self.text.startswith(fence, self.at):
            self._advance(2 if quote == '"' and self.text[self.at] == "\\" else 1)
            if self.at >= len(self.text):
                raise IndexError("unterminated string")
        # Up to two quotes may stand directly before the closing fence: they belong to the string.
        while self.text.startswith(quote, self.at + 3):
            self._advance(1)
        self._advance(3)

    def _skip_blank(self, newlines: bool = False) -> None:
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == "#" and newlines:
                while self.at < len(self.text) and self.text[self.at] != "\n":
                    self.at += 1
            elif char in " \t" or (newlines and char == "\n"):
                self._advance(1)
            else:
                return

    def _advance(self, count: int) -> None:
        for _ in range(count):
            if self.at < len(self.text) and self.text[self.at] == "\n":
                self.line += 1
                self.line_start = self.at + 1
            self.at += 1


_ESCAPES = {"b": "\b", "t": "\t", "n": "\n", "f": "\f", "r": "\r", '"': '"', "\\": "\\"}


def _unescaped(raw: str) -> str:
    """The name that a basic quoted key stands for."""
    out: list[str] = []
    at = 0
    while at < len(raw):
        if raw[at] != "\\":
            out.append(raw[at])
            at += 1
            continue
        escape = raw[at + 1]
        if escape in "uU":
            width = 4 if escape == "u" else 8
            out.append(chr(int(raw[at + 2 : at + 2 + width], 16)))
            at += 2 + width
        else:
            out.append(_ESCAPES.get(escape, escape))
            at += 2
    return "".join(out)
