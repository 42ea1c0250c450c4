"""The size budget, and words that may not name or fill a file."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "elinvar"
FILES = sorted(SOURCE.rglob("*.py"))
ALL = [*FILES, *sorted((ROOT / "tests").rglob("*.py"))]

MOST_LINES = 500
MOST_LINES_OF_A_FUNCTION = 100
LONG_FUNCTION = 60
MOST_LONG_SHARE = 0.03
EMPTY_NAMES = re.compile(r"utils?|helpers?|common|misc|manager|stuff", re.IGNORECASE)
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK|NotImplementedError)\b")


def tree(path):
    return ast.parse(path.read_text(encoding="utf-8"))


def functions(path):
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, node.end_lineno - node.lineno + 1


def relative(path):
    return str(path.relative_to(ROOT))


def test_a_file_has_at_most_500_lines():
    lengths = {relative(path): len(path.read_text(encoding="utf-8").splitlines()) for path in ALL}
    assert {path: lines for path, lines in lengths.items() if lines > MOST_LINES} == {}


def test_no_function_over_100_lines():
    found = {(relative(path), name): lines for path in ALL for name, lines in functions(path)}
    assert {place: lines for place, lines in found.items() if lines > MOST_LINES_OF_A_FUNCTION} == {}


def test_at_most_three_percent_of_functions_over_60_lines():
    lengths = [lines for path in FILES for _, lines in functions(path)]
    assert sum(lines > LONG_FUNCTION for lines in lengths) <= MOST_LONG_SHARE * len(lengths)


def test_names_say_something():
    found = []
    for path in FILES:
        names = [word for part in path.relative_to(SOURCE).with_suffix("").parts for word in part.split("_")]
        names += [
            word
            for node in ast.walk(tree(path))
            if isinstance(node, ast.ClassDef)
            for word in re.findall(r"[A-Z][a-z0-9]*", node.name)
        ]
        found += [(relative(path), word) for word in names if EMPTY_NAMES.fullmatch(word)]
    assert found == []


def test_nothing_is_unfinished():
    texts = {relative(path): path.read_text(encoding="utf-8") for path in FILES}
    assert {path: UNFINISHED.findall(text) for path, text in texts.items() if UNFINISHED.search(text)} == {}


def test_every_module_says_what_it_is():
    assert [relative(path) for path in FILES if not ast.get_docstring(tree(path))] == []


def test_only_commands_and_runs_print():
    """A run's progress goes to stderr; everything else hands its words back to the command line."""
    found = [
        (relative(path), node.lineno)
        for path in FILES
        if path.parent.name not in ("cli", "run")
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert found == []
