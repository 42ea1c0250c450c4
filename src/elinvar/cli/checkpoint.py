"""`elinvar checkpoint`: list, show and check the generations of a run folder."""

import time
from pathlib import Path
from typing import Any

import click
import msgspec

from elinvar.cli.terminal import print_json, print_lines, print_table
from elinvar.errors import InvalidInput, Mismatch
from elinvar.plan.units import size
from elinvar.record.folder import RunFolder
from elinvar.record.manifest import Generation, list_incomplete, read_manifest
from elinvar.spec.explain import counted

FOLDER = click.argument("folder", type=click.Path(path_type=Path), metavar="DIR")
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group
def command() -> None:
    """List, show and check the generations of a run folder."""


@command.command("list")
@FOLDER
@JSON
def list_command(folder: Path, *, as_json: bool) -> None:
    """Every generation, oldest first, and folders that are none."""
    run = RunFolder.open(folder)
    generations = run.generations()
    incomplete = list_incomplete(run.generations_path)
    if as_json:
        print_json(
            {
                "generations": [_summary(generation) for generation in generations],
                "incomplete": [{"path": str(entry.path), "reason": entry.reason} for entry in incomplete],
            }
        )
        return
    if generations:
        print_table(
            ["step", "update digest", "size", "committed", "name"],
            [
                [
                    str(generation.step),
                    generation.update_digest[:16],
                    size(_size(generation)),
                    time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(generation.time_s)),
                    generation.name,
                ]
                for generation in generations
            ],
            right=(0, 2),
        )
    else:
        print_lines("no generation yet")
    for entry in incomplete:
        print_lines(f"not a generation: {entry.path.name}: {entry.reason}")


@command.command("show")
@FOLDER
@click.option("--at", type=int, metavar="STEP", help="The generation of this step (default: the newest).")
@JSON
def show_command(folder: Path, at: int | None, *, as_json: bool) -> None:
    """One generation: its counters, and every tensor with shape, digest and where it lies."""
    generation = _chosen(RunFolder.open(folder), at)
    manifest = read_manifest(generation)
    if as_json:
        print_json({**_summary(generation), "manifest": msgspec.to_builtins(manifest)})
        return
    print_lines(
        f"generation  {generation.name}",
        f"step        {generation.step}",
        f"digest      {generation.update_digest}",
        f"experiment  {manifest.experiment_digest}",
        f"parent      {manifest.parent or 'none'}",
        *(f"{name:<18} {value}" for name, value in sorted(manifest.scalars.items())),
        "",
    )
    print_table(
        ["tensor", "dtype", "shape", "digest", "pieces"],
        [
            [
                entry.name,
                entry.dtype,
                "×".join(map(str, entry.shape)),
                entry.lanes[:16],
                " ".join(f"{piece.file}[{piece.start}:{piece.stop}]" for piece in entry.pieces),
            ]
            for entry in manifest.tensors
        ],
    )


@command.command("check")
@FOLDER
@click.option("--at", type=int, metavar="STEP", help="Only the generation of this step.")
@JSON
def check_command(folder: Path, at: int | None, *, as_json: bool) -> None:
    """Read every byte of every generation and compare hashes and digests; exit 4 on damage."""
    run = RunFolder.open(folder)
    chosen = run.generations() if at is None else [_chosen(run, at)]
    from elinvar.checkpoint.check import check_generation  # only now: it takes seconds to import

    found = {generation.name: check_generation(generation) for generation in chosen}
    if as_json:
        print_json({"checked": found, "ok": not any(found.values())})
    else:
        for name, problems in found.items():
            print_lines(f"{'damaged' if problems else 'sound  '} {name}", *(f"  {line}" for line in problems))
        if not found:
            print_lines("no generation yet")
    damaged = [name for name, problems in found.items() if problems]
    if damaged:
        raise Mismatch(
            f"{len(damaged)} of {counted(len(found), 'generation')} damaged: {', '.join(damaged)}",
            ["resume takes the newest sound one and says which it passed over"],
        )


def _chosen(run: RunFolder, at: int | None) -> Generation:
    found = run.generations()
    chosen = [generation for generation in found if at is None or generation.step == at]
    if not chosen:
        steps = ", ".join(str(generation.step) for generation in found) or "none"
        what = "generation" if at is None else f"generation at step {at}"
        raise InvalidInput(f"{run.path} has no {what}", [f"generations are at step: {steps}"])
    return chosen[-1]


def _summary(generation: Generation) -> dict[str, Any]:
    return {
        "name": generation.name,
        "step": generation.step,
        "update_digest": generation.update_digest,
        "sequence": generation.sequence,
        "time_s": generation.time_s,
        "bytes": _size(generation),
    }


def _size(generation: Generation) -> int:
    return sum(file.stat().st_size for file in generation.path.iterdir() if file.is_file())
