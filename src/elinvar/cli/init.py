"""`elinvar init`: a commented run file to start from. Never overwrites."""

import os
from pathlib import Path

import click

from elinvar.cli.terminal import print_json, print_lines
from elinvar.errors import DoesNotFit, InvalidInput
from elinvar.spec.explain import nearest
from elinvar.spec.layers import preset_names, preset_text


@click.command("init")
@click.argument("path", default="run.toml", metavar="[PATH]")
@click.option("--preset", default="tiny", show_default=True, help="The preset to start from.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(path: str, preset: str, *, as_json: bool) -> None:
    """Write a commented run file to PATH (default run.toml), which must not exist."""
    if preset not in preset_names():
        close = nearest(preset, preset_names())
        lines = [f"the nearest is {close}"] if close else []
        raise InvalidInput(f"no preset {preset}", [*lines, f"presets: {', '.join(preset_names())}"])
    target = Path(path)
    if os.path.isdir(path):  # noqa: PTH112  (Path.is_dir raises where a name is too long)
        target /= "run.toml"
    if target.suffix != ".toml":
        raise InvalidInput(
            f"{path} has no ending .toml, so no command would take it for a run file", [f"use {path}.toml"]
        )
    try:
        with target.open("x", encoding="utf-8") as file:
            file.write(preset_text(preset))
    except FileExistsError:
        raise InvalidInput(
            f"{target} exists already; nothing was changed", ["choose another name: elinvar init OTHER.toml"]
        ) from None
    except (FileNotFoundError, NotADirectoryError):
        raise InvalidInput(f"the folder {target.parent} does not exist") from None
    except OSError as error:
        raise DoesNotFit(f"{target} cannot be written: {error.strerror}") from None
    if as_json:
        print_json({"path": str(target), "preset": preset})
        return
    print_lines(
        f"wrote {target}",
        f"see it resolved:   elinvar show {target}",
        f"train it:          elinvar train {target}",
        f"on your own text:  elinvar train {target} data.source=FILE.txt",
    )
