"""What commands print: results to stdout, as JSON, as lines or as a table.

Noun: the table. On a terminal it is drawn by rich (imported only then); elsewhere it is plain
aligned text, without colour codes and without wrapping, so that it can be piped. `NO_COLOR` is
honoured. Progress and errors do not pass here: they go to stderr.
"""

import json
import os
import sys
from collections.abc import Sequence
from typing import Any

from elinvar.errors import StorageFailed
from elinvar.run.progress import silence


def print_json(value: Any) -> None:
    """Print `value` as the one JSON document on stdout."""
    _write(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def print_lines(*lines: str) -> None:
    """Print lines of plain text."""
    _write("".join(f"{line}\n" for line in lines))


def print_text(text: str) -> None:
    """Print a piece of text as it is, without a line end, at once."""
    _write(text)


def colours() -> bool:
    """Whether stdout is a terminal that shows colour and nobody asked for none."""
    return _is_terminal() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def print_table(headers: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()) -> None:
    """Print a table; `right` are the columns aligned to the right."""
    if _is_terminal():
        _print_rich(headers, rows, right)
    else:
        print_lines(*plain_table(headers, rows, right=right))


def plain_table(
    headers: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()
) -> list[str]:
    """The table as aligned lines, two blanks between columns, nothing at the end of a line."""
    widths = [max(len(row[column]) for row in [headers, *rows]) for column in range(len(headers))]
    return [
        "  ".join(
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in [headers, *rows]
    ]


def _is_terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()


def _write(text: str) -> None:
    if sys.stdout is None:  # Python's word for a closed one
        raise StorageFailed("the output cannot be written: stdout is closed")
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise  # main ends quietly
    except OSError as error:
        silence(sys.stdout)
        raise StorageFailed(f"the output cannot be written: {error.strerror}") from None


def _print_rich(headers: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column, header in enumerate(headers):
        table.add_column(Text(header), justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        # As Text: square brackets in a value are no markup.
        table.add_row(*(Text(cell) for cell in row))
    Console(no_color=not colours(), highlight=False).print(table)
