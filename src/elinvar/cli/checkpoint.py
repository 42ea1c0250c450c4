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
from elinvar.record.manifest import Generation, Incomplete, list_incomplete, read_manifest
from elinvar.spec.canonical import math_digest
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
    damaged, left = _damaged(run, at)
    chosen = run.generations() if at is None or damaged else [_chosen(run, at)]
    chosen = [generation for generation in chosen if at is None or generation.step == at]
    from elinvar.checkpoint.check import check_generation  # only now: it takes seconds to import

    math = math_digest(run.experiment())
    found = {generation.name: check_generation(generation, math) for generation in chosen}
    found |= {entry.name: [entry.reason] for entry in damaged}
    if as_json:
        print_json({"checked": found, "ok": not any(found.values())})
    else:
        for name, problems in found.items():
            print_lines(f"{'damaged' if problems else 'sound  '} {name}", *(f"  {line}" for line in problems))
        if not found:
            print_lines("no generation yet")
        print_lines(*(f"not a generation: {entry.name}: {entry.reason}" for entry in left))
    names = [name for name, problems in found.items() if problems]
    if names:
        raise Mismatch(
            f"{len(names)} of {counted(len(found), 'generation')} damaged: {', '.join(names)}",
            ["resume takes the newest sound one and says which it passed over"],
        )


def _damaged(run: RunFolder, at: int | None) -> tuple[list[Incomplete], list[Incomplete]]:
    """Folders whose commit record is damaged, and folders without one; with `at`, those of that step."""
    entries = list_incomplete(run.generations_path)
    asked = [entry for entry in entries if at is None or entry.step == at]
    return [e for e in asked if e.is_damaged], [e for e in asked if not e.is_damaged]


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
