import io
import json
import sys

from elinvar.cli.terminal import plain_table, print_json, print_table


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_json_is_one_document(capsys):
    print_json({"a": 0.1, "é": [None, True]})
    assert json.loads(capsys.readouterr().out) == {"a": 0.1, "é": [None, True]}


def test_a_plain_table_is_aligned_and_has_no_tail():
    assert plain_table(["name", "n"], [["a", "10"], ["long", "2"]], right=[1]) == [
        "name   n",
        "a     10",
        "long   2",
    ]
    assert plain_table(["a", "b"], []) == ["a  b"]


def test_a_pipe_gets_plain_text_that_is_not_wrapped(capsys):
    print_table(["path", "value"], [["x" * 200, "[red]1[/red]"]])
    assert capsys.readouterr().out.split("\n")[1] == f"{'x' * 200}  [red]1[/red]"


def test_a_terminal_gets_a_drawn_table_and_no_colour_where_none_is_wanted(monkeypatch):
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("NO_COLOR", "1")
    print_table(["name", "n"], [["[red]a[/red]", "10"]], right=[1])
    text = screen.getvalue()
    assert "[red]a[/red]" in text
    assert "─" in text
    assert "\x1b[3" not in text
