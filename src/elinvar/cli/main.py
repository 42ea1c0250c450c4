"""The `elinvar` command: which commands there are, and how each of them ends.

Nouns: the table of commands, and the exit code. A command's module is imported when it is called
(`elinvar.cli.<name>`, attribute `command`), so help costs no more than click. Errors written for the
user become `error: …` on stderr and their own exit code; anything else keeps its traceback, because
it is a defect of ours.
"""

import errno
import os
import sys
import warnings
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import TextIO

import click

from elinvar import __version__
from elinvar.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_INVALID, EXIT_OK, ElinvarError, InvalidInput
from elinvar.run.progress import put, say, silence

EXIT_BROKEN_PIPE = 141
"""What a shell reports for a program that SIGPIPE ended: the reader of our output went away."""

_PATH_ERRORS = (errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL, errno.ENOTDIR)
"""What the system says of a path that can be nothing's name: the fault of who wrote it."""

_COUNTS = ("--step", "--at", "--until")
"""Options whose value is a count of steps."""

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
    _occupy_closed()
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
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        silence(sys.stdout)  # nobody reads
        return EXIT_BROKEN_PIPE
    finally:
        put(sys.stderr, "")  # what a warning left there must not fail at exit
    return code


def _occupy_closed() -> None:
    """Open what the caller closed of stdin, stdout and stderr: else a file of the run would become it."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest free number: this one


def _invoke(arguments: list[str]) -> int:
    try:
        _refuse_early(arguments)
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
    except OSError as error:
        if error.errno not in _PATH_ERRORS or error.filename is None:
            raise
        _complain([f"{error.filename!r} cannot be a path: {error.strerror}"])
        return EXIT_INVALID
    except (click.Abort, KeyboardInterrupt):
        _complain(["interrupted"])
        return EXIT_INTERRUPTED


def _refuse_early(arguments: list[str]) -> None:
    """Refuse what every command would trip over, or take for something else."""
    asks_help = not arguments or any(word in ("-h", "--help", "--version") for word in arguments)
    try:
        os.getcwd()  # noqa: PTH109
    except FileNotFoundError:
        if not asks_help:
            raise InvalidInput("the current folder no longer exists", ["cd to one that does"]) from None
    if asks_help or arguments[0] == "sample":  # a prompt may be anything
        return
    if "" in arguments:
        # A path would take it for the current folder.
        number = arguments.index("") + 1
        raise InvalidInput(f"argument {number} is empty", ["expected a name or a value there"])
    for option, following in zip(arguments, [*arguments[1:], ""], strict=True):
        name, equals, value = option.partition("=")
        value = value if equals else following
        if name in _COUNTS and not value.isascii():
            raise InvalidInput(
                f"{name} {value!r} is no number of a step", ["write it with the digits 0 to 9"]
            )


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
        say(f"note   {message}")
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
    if sys.stderr is None:
        return
    colour = sys.stderr.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    head = click.style("error:", fg="red", bold=True) if colour else "error:"
    say("\n".join([f"{head} {lines[0]}", *lines[1:]]))
