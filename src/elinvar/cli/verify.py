"""`elinvar verify`: rerun an experiment under other executions and compare the bits."""

import shutil
import tempfile
import time
import tomllib
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from elinvar.cli.terminal import print_lines, print_table, print_text
from elinvar.errors import InvalidInput, Mismatch
from elinvar.identity import Digest
from elinvar.plan.claim import claim_across_executions
from elinvar.plan.machine import THIS, read_machine
from elinvar.record import proof as record
from elinvar.record.durable import place_failed, write_whole
from elinvar.record.folder import RunFolder, new_path
from elinvar.run.early import stoppable
from elinvar.run.forkserver import warm_up
from elinvar.run.prepare import cache_folder
from elinvar.run.progress import say
from elinvar.spec.canonical import experiment_digest, math_digest
from elinvar.spec.execution import Execution
from elinvar.spec.experiment import Experiment
from elinvar.spec.explain import toml_text
from elinvar.spec.read import read, with_overrides


@click.command
@click.argument("source", metavar="RUN.toml|PRESET|DIR")
@click.argument("overrides", nargs=-1, metavar="[key=value]...")
@click.option("--against", multiple=True, metavar="EXECUTION.toml", help="Compare these executions instead.")
@click.option("--steps", type=click.IntRange(min=1), default=20, show_default=True, help="Steps a case.")
@click.option(
    "--all", "everything", is_flag=True, help="Ranks 1-4 x ZeRO 0, 1 x workers 0, 3, and two kills."
)
@click.option("--json", "as_json", is_flag=True, help="Print the proof as JSON.")
def command(
    source: str,
    overrides: tuple[str, ...],
    against: tuple[str, ...],
    steps: int,
    *,
    everything: bool,
    as_json: bool,
) -> None:
    """Rerun SOURCE from step 0 under several executions; are the states the same, bit by bit?

    Writes proof.json (into DIR, or a new folder below runs/). Exit 4 where a claim fails.
    """
    with stoppable("stopped: nothing is proven, and nothing was changed"):
        warm_up()
        name, experiment, run = _subject(source, overrides)
        executions = [(Path(path).stem, _execution(Path(path))) for path in against]
        proof = prove(
            name, experiment, run, steps, executions=executions, everything=everything, quiet=as_json
        )
    if as_json:
        print_text(record.encode_proof(proof).decode())
    check(proof)


def check(proof: record.Proof) -> None:
    """Raise Mismatch, naming the cases, where a claim failed."""
    failed = [f"{case.name}: {case.message or case.relation}" for case in proof.cases if not case.ok]
    if failed:
        raise Mismatch(f"{len(failed)} of {len(_ours(proof))} cases are not what was claimed", failed)


def prove(
    name: str,
    experiment: Experiment,
    run: RunFolder | None,
    steps: int,
    *,
    executions: list[tuple[str, Execution]],
    everything: bool = False,
    quiet: bool = False,
) -> record.Proof:
    """Run all cases, print their table unless `quiet`, and write the proof."""
    from elinvar.data.feed import Feed
    from elinvar.data.store import open_store
    from elinvar.numerics.fingerprint import fingerprint
    from elinvar.run.recorder import versions
    from elinvar.verify import case as cases
    from elinvar.verify.drill import Drill, shortened

    experiment = shortened(experiment, max(steps, experiment.length.steps))
    num_microbatches = experiment.batch.microbatches
    chosen = (cases.all_cases if everything else cases.default_cases)(steps, num_microbatches)
    if executions:
        chosen = cases.given_cases(executions)
    workplace = Path(tempfile.mkdtemp(prefix="elinvar-verify-"))
    drill = Drill(
        experiment=experiment,
        machine=read_machine(THIS),
        feed=Feed(open_store(experiment.data, cache_folder()), experiment),
        steps=steps,
        workplace=workplace,
    )
    found: list[record.Case] = []
    try:
        for case in cases.every_step(chosen) if run is not None else chosen:
            found.append(drill.run(case))
            _progress(found[-1], quiet=quiet)
        if run is not None:
            recorded = drill.recorded(run)
            if recorded is not None:
                found.append(recorded)
                _progress(recorded, quiet=quiet)
            elif not quiet:
                say(f"note   {_not_compared(run)}")
        for contrast in () if executions else cases.CONTRASTS:
            found.append(drill.contrast(contrast))
            _progress(found[-1], quiet=quiet)
    finally:
        shutil.rmtree(workplace, ignore_errors=True)
    proof = record.Proof(
        experiment_digest=experiment_digest(experiment),
        math_digest=math_digest(experiment),
        steps=steps,
        claim=claim_across_executions(experiment).relation,
        fingerprint=dict(fingerprint(experiment.numerics, "cpu")),
        cases=found,
        ok=all(case.ok for case in found),
        time_s=time.time(),
        versions=versions(),
    )
    path = _place(name, run, proof.experiment_digest)
    record.write_proof(path, proof)
    if not quiet:
        _show(proof, path)
    if run is not None:
        with suppress(OSError):
            _refresh_report(run)
    return proof


def _not_compared(run: RunFolder) -> str:
    """Why nothing that the run recorded could be held against the cases."""
    lineage = run.lineage()
    if lineage is None:
        return "the record of this run holds no step that can be compared here"
    return (
        f"this run is a fork of {lineage.run} at step {lineage.step}: its own steps were not compared; "
        "what was verified is its experiment from step 0"
    )


def _subject(source: str, overrides: tuple[str, ...]) -> tuple[str, Experiment, RunFolder | None]:
    if Path(source).is_dir():
        if overrides:
            raise InvalidInput(
                f"{source} is a run folder: its experiment is what it is", [f"got {' '.join(overrides)}"]
            )
        run = RunFolder.open(Path(source))
        return run.path.name, run.experiment(), run
    reading = read(source, overrides, or_folder=True)
    return reading.name, reading.experiment, None


def _execution(path: Path) -> Execution:
    """The [execution] table of a TOML file, as strict as a run file's."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InvalidInput(f"no such file: {path}") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidInput(f"cannot read {path}: {error}") from None
    foreign = sorted(tables.keys() - {"execution"})
    if foreign:
        raise InvalidInput(f"{path} holds [{foreign[0]}]: only [execution] may differ in a verification")
    return with_overrides(Execution(), _assignments(tables, ""))


def _assignments(table: dict[str, Any], prefix: str) -> list[str]:
    """The table as overrides, one a value."""
    found: list[str] = []
    for key, value in table.items():
        path = f"{prefix}{key}"
        found += (
            _assignments(value, f"{path}.") if isinstance(value, dict) else [f"{path}={toml_text(value)}"]
        )
    return found


def _place(name: str, run: RunFolder | None, digest: Digest) -> Path:
    if run is not None:
        return run.proof_path
    folder = new_path(Path("runs"), f"verify-{name}", digest)
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise place_failed(folder, error) from error
    return folder / "proof.json"


def _refresh_report(run: RunFolder) -> None:
    from elinvar.report.page import page

    if (run.path / "report.html").exists():
        write_whole(run.path / "report.html", page(run.path).encode())


def _progress(case: record.Case, *, quiet: bool) -> None:
    if not quiet:
        say(f"{'ok    ' if case.ok else 'FAILED'} {case.name} ({case.seconds:.1f} s)")


def _show(proof: record.Proof, path: Path) -> None:
    last = proof.steps
    rows = []
    for case in proof.cases:
        missing = "none skipped, none twice"
        if case.skipped or case.repeated:
            missing = f"{case.skipped} skipped, {case.repeated} twice"
        digest = case.digests.get(last) or case.digests[max(case.digests)]
        words = {"same bits": "identical", "different": "different"}[case.relation]
        rows.append(
            [
                case.name,
                digest[:16],
                "reference" if case.expected == "reference" else words,
                f"{case.tokens:,}",
                missing if case.expected != "different" else case.message,
            ]
        )
    print_table(["execution", f"update digest after step {last}", "", "tokens", "samples"], rows, right=(3,))
    verdict = "every claim holds" if proof.ok else "a claim FAILED"
    print_lines(f"{verdict}: {proof.claim} over {len(_ours(proof))} cases", f"proof  {path}")


def _ours(proof: record.Proof) -> list[record.Case]:
    """The cases that claim something; the others only show what the usual ways give."""
    return [case for case in proof.cases if case.expected != "different"]
