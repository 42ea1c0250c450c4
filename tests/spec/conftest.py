"""A TOML writer that writes one tree in many styles and knows where it put each key.

It is the reference for the scanner of positions and the source of equal files for the digest law:
it shares no code with the reader.
"""

import json
from typing import Any

import pytest


class StyledWriter:
    """Writes `tree` with choices from `draw(list)`; `places` maps key paths to (line, column)."""

    def __init__(self, draw, *, decorate: bool = True) -> None:
        self.draw = draw
        self.decorate = decorate
        self.text = ""
        self.places: dict[tuple[Any, ...], tuple[int, int]] = {}

    def document(self, tree: dict[str, Any]) -> str:
        self._section((), tree)
        return self.text

    def _here(self) -> tuple[int, int]:
        line = self.text.count("\n") + 1
        return line, len(self.text) - (self.text.rfind("\n") + 1) + 1

    def _noise(self) -> None:
        if self.decorate:
            self.text += self.draw(["", "", "\n", "# fake = 1\n", "  # [experiment.model]\n", "\t\n"])
            self.text += self.draw(["", "", "  ", "\t"])

    def _line_end(self) -> None:
        self.text += self.draw(["\n", "\n", "  # note = 'x'\n"]) if self.decorate else "\n"

    def _key(self, name: str) -> None:
        bare = name.isascii() and name.replace("_", "a").replace("-", "a").isalnum()
        styles = [json.dumps(name)]
        if bare:
            styles += [name, name, name]
        if "'" not in name and "\n" not in name and name.isprintable():
            styles.append(f"'{name}'")
        if name and self.decorate:
            styles.append(f'"\\U{ord(name[0]):08X}{json.dumps(name[1:])[1:-1]}"')
        self.text += self.draw(styles)

    def _section(self, path: tuple[Any, ...], tree: dict[str, Any]) -> None:
        later = self._body(path, (), tree)
        for name in later:
            self._noise()
            self.text += self.draw(["[", "[ "])
            for depth, part in enumerate((*path, name), start=1):
                if depth > 1:
                    self.text += self.draw([".", " . "])
                self.places.setdefault((*path, name)[:depth], self._here())
                if depth == len(path) + 1:
                    self.places[(*path, name)] = self._here()
                self._key(part)
            self.text += "]"
            self._line_end()
            self._section((*path, name), tree[name])

    def _body(self, path, prefix, tree) -> list[str]:
        later = []
        names = list(tree)
        for _ in range(len(names)):
            name = self.draw(names)
            names.remove(name)
            value = tree[name]
            style = "plain"
            if isinstance(value, dict):
                style = self.draw(["header", "dotted", "inline"] if not prefix else ["dotted", "inline"])
                if style == "dotted" and not value:
                    style = "inline"
            if style == "header":
                later.append(name)
            elif style == "dotted":
                self._body(path, (*prefix, name), value)
            else:
                self._noise()
                self._assign(path, (*prefix, name), value)
                self._line_end()
        return later

    def _assign(self, path, names, value) -> None:
        for depth, name in enumerate(names, start=1):
            if depth > 1:
                self.text += self.draw([".", " ."])
            full = (*path, *names[:depth])
            self.places.setdefault(full, self._here())
            self._key(name)
        self.text += self.draw([" = ", "=", " =  "])
        self._value((*path, *names), value)

    def _value(self, path, value) -> None:
        if isinstance(value, dict):
            self.text += "{ "
            for place, (name, inner) in enumerate(value.items()):
                self.text += ", " if place else ""
                self._assign(path, (name,), inner)
            self.text += " }"
        elif isinstance(value, list):
            self.text += self.draw(["[", "[ # ]\n"])
            for index, inner in enumerate(value):
                self.text += self.draw([", ", ",\n  # a = 2\n"]) if index else ""
                self._value((*path, index), inner)
            self.text += self.draw(["]", ",\n]"]) if value else "]"
        elif isinstance(value, str):
            styles = [json.dumps(value)]
            if "'" not in value and value.isprintable():
                styles.append(f"'{value}'")
            if self.decorate and "'''" not in value and not value.endswith("'") and "\r" not in value:
                styles.append(f"'''\n{value}'''")
            if self.decorate:
                body = json.dumps(value)[1:-1].replace("\\n", "\n")
                styles.append(f'"""\n{body}"""')
            self.text += self.draw(styles)
        elif isinstance(value, bool):
            self.text += "true" if value else "false"
        else:
            self.text += repr(value)


@pytest.fixture(scope="session")
def styled_writer():
    """The class itself."""
    return StyledWriter


@pytest.fixture
def corpus(tmp_path):
    """A small text file."""
    path = tmp_path / "corpus.txt"
    path.write_text("To be, or not to be.\n" * 50)
    return path
