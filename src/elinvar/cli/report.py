"""`elinvar report`: the report of a run folder, one self-contained HTML file. Imports no torch."""

from pathlib import Path

import click

from elinvar.cli.terminal import print_json, print_lines
from elinvar.record.durable import place_failed, write_whole
from elinvar.report.history import read_history
from elinvar.report.page import render


@click.command("report")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--output",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Where to write the page. Default: DIR/report.html.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the path and the state of the run as JSON.")
def command(folder: Path, output: Path | None, *, as_json: bool) -> None:
    """Write the report of a run folder as one HTML file, which fetches nothing.

    It may be written at any moment, also while the run goes on: it only reads the record. An older
    report at the same place is replaced, complete or not at all.
    """
    history = read_history(folder)
    path = (output if output is not None else history.path / "report.html").absolute()
    data = render(history).encode()
    try:
        write_whole(path, data)
    except OSError as error:
        raise place_failed(path, error, "--output FILE") from error
    if as_json:
        print_json({
            "path": str(path),
            "bytes": len(data),
            "run": str(history.path),
            "state": history.state[0],
            "step": history.step,
            "steps": history.steps,
            "notices": history.notices,
        })  # fmt: skip
    else:
        print_lines(str(path))
