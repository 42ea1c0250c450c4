"""The `elinvar` command: which commands there are, and how each of them ends.

Nouns: the table of commands, and the exit code. A command's module is imported when it is called
(`elinvar.cli.<name>`, attribute `command`), so help costs no more than click. Errors written for the
user become `error: …` on stderr and their own exit code; anything else keeps its traceback, because
it is a defect of ours.
"""

import os
import sys
import warnings
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import TextIO

import click

from elinvar import __version__
from elinvar.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_INVALID, EXIT_OK, ElinvarError

EXIT_BROKEN_PIPE = 141
"""What a shell reports for a program that SIGPIPE ended: the reader of our output went away."""

COMMANDS: dict[str, str] = {
    "train": "Train a run file or preset in a new or an existing run folder.",
    "resume": "Continue a run folder from its newest generation.",
    "verify": "Rerun an experiment under other executions and compare the bits.",
    "plan": "Say what a run will do, need and promise, without starting it.",
    "show": "Print a run file, preset or run folder with everything resolved.",
    "diff": "Compare two runs: what differs, and what equality that leaves.",
    "init": "Write a commented run file to start from.",
    "report": "Write the report of a run folder as one HTML file.",
    "sample": "Let the model of a run folder continue a prompt.",
    "samples": "Say which samples a step saw, and which steps saw a sample.",
    "data": "Build, show and check data stores.",
    "checkpoint": "List, show and check the generations of a run folder.",
    "doctor": "Check this machine, and store what can move bits here.",
    "demo": "Train tiny, verify it and write its report.",
}
"""Each command with its line of help; the order is that of a run's life."""


class Commands(click.Group):
    """The group that imports a command's module only when that command is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names in the order of the table."""
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, imported now; None for a name that is not in the table."""
        del ctx
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(f"elinvar.cli.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The table itself: click would import every module for its help."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.command(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="elinvar %(version)s")
def commands() -> None:
    """Train language models so that how you compute never changes what you learn, and prove it.

    A run file has two halves: [experiment] is what is learned, [execution] is how it is computed.
    A preset (tiny, small) stands for its run file everywhere. Overrides are assignments in the
    file's own grammar: optimizer.lr=5e-4.
    """


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line `arguments` (default: this process's) and exit with its code."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal without UTF-8 shows an escape where it has no sign, instead of a traceback.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    warnings.showwarning = _note
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code; unexpected exceptions pass through."""
    try:
        if "_ELINVAR_COMPLETE" in os.environ:
            commands.main(list(arguments), prog_name="elinvar")
        code = _invoke(list(arguments))
        sys.stdout.flush()
    except BrokenPipeError:
        # Nobody reads: point stdout elsewhere, or its flush at exit would complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    return code


def _invoke(arguments: list[str]) -> int:
    try:
        with commands.make_context("elinvar", arguments) as context:
            commands.invoke(context)
        return EXIT_OK
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        return EXIT_INVALID
    except click.UsageError as error:
        _complain(_usage_lines(error))
        return EXIT_INVALID
    except click.ClickException as error:
        _complain([error.format_message()])
        return EXIT_FAILED
    except ElinvarError as error:
        _complain(str(error).split("\n"))
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        _complain(["interrupted"])
        return EXIT_INTERRUPTED


def _note(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Show a warning of ours as a note to the user; anybody else's as Python does."""
    if category.__module__.startswith("elinvar."):
        click.echo(f"note   {message}", err=True)
    else:
        _python_shows(message, category, filename, lineno, file, line)


_python_shows = warnings.showwarning


def _usage_lines(error: click.UsageError) -> list[str]:
    lines = [error.format_message()]
    context = error.ctx
    if context is None:
        return lines
    if isinstance(error, click.exceptions.NoSuchCommand):
        close = get_close_matches(error.command_name, COMMANDS, n=1)
        lines = [f"no such command: {error.command_name}", *(f"  the nearest is {name}" for name in close)]
    if isinstance(error, click.exceptions.NoSuchOption):
        lines += _override_help(error.option_name)
    return [*lines, f"  see: {context.command_path} --help"]


def _override_help(option: str) -> list[str]:
    """A line for who writes a value of the run file as an option."""
    from elinvar.spec.fields import all_paths

    name = option.lstrip("-").replace("-", "_")
    fitting = [path for path in all_paths() if f".{path}".endswith(f".{name}")]
    return [f"  values are written without dashes: {fitting[0]}=VALUE"] if fitting else []


def _complain(lines: list[str]) -> None:
    """Print an error on stderr; the word `error` in red where a terminal shows colour."""
    colour = sys.stderr.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    head = click.style("error:", fg="red", bold=True) if colour else "error:"
    click.echo("\n".join([f"{head} {lines[0]}", *lines[1:]]), err=True, color=colour)
