"""`elinvar show`: a run file, preset or run folder with everything resolved."""

import json

import click
import msgspec

from elinvar.cli.subject import Subject, open_subject
from elinvar.cli.terminal import print_json, print_lines
from elinvar.errors import InvalidInput
from elinvar.run.progress import say
from elinvar.spec.canonical import experiment_digest, math_digest
from elinvar.spec.render import run_file_text
from elinvar.spec.schema import run_file_schema


@click.command("show")
@click.argument("subject", required=False, metavar="RUN.toml|PRESET|DIR")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option(
    "--origin", is_flag=True, help="Say of each value who set it: a file and line, an override, a default."
)
@click.option("--schema", is_flag=True, help="Print the JSON Schema of a run file instead, for editors.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    subject: str | None, overrides: tuple[str, ...], *, origin: bool, schema: bool, as_json: bool
) -> None:
    """Print a run with every default written out, and its two digests.

    The text is a run file itself: saved, it has the same digests.
    """
    if schema:
        print_lines(json.dumps(run_file_schema(), indent=2, ensure_ascii=False))
        return
    if subject is None:
        raise click.UsageError("Missing argument 'RUN.toml|PRESET|DIR'.", click.get_current_context())
    shown = open_subject(subject, overrides)
    if origin and shown.origins is None:
        raise InvalidInput(
            f"{subject} is a run folder: it records values, not the files that they came from",
            [f"without --origin: elinvar show {subject}"],
        )
    for note in shown.notes:
        say(f"note   {note}")
    if as_json:
        print_json(_as_json(shown))
    else:
        print_lines(*_head(shown), "")
        text = run_file_text(
            shown.experiment, shown.execution, shown.machine, shown.origins if origin else None
        )
        print_lines(text.rstrip("\n"))


def _head(shown: Subject) -> list[str]:
    return [
        f"# {shown.name}",
        f"# experiment_digest {experiment_digest(shown.experiment)}",
        f"# math_digest       {math_digest(shown.experiment)}",
    ]


def _as_json(shown: Subject) -> dict[str, object]:
    return {
        "name": shown.name,
        "experiment_digest": experiment_digest(shown.experiment),
        "math_digest": math_digest(shown.experiment),
        "experiment": msgspec.to_builtins(shown.experiment),
        "execution": None if shown.execution is None else msgspec.to_builtins(shown.execution),
        "machine": shown.machine,
        "origins": shown.origins,
    }
