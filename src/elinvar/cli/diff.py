"""`elinvar diff`: what differs between two runs, what equality that leaves, and whether it held."""

from typing import Any

import click
from msgspec import Struct

from elinvar.cli.subject import Subject, open_subject
from elinvar.cli.terminal import print_json, print_lines, print_table
from elinvar.errors import Mismatch
from elinvar.plan.claim import Claim, relation_of
from elinvar.record.metrics import effective
from elinvar.spec.canonical import experiment_digest
from elinvar.spec.explain import differences, toml_text


class Updates(Struct, frozen=True, kw_only=True):
    """The update digests of two run folders at the steps where both have one."""

    steps: list[int]
    first_unequal: int | None


@click.command("diff")
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(a: str, b: str, *, as_json: bool) -> None:
    """Compare two run files, presets or run folders.

    Prints the values that differ, each with its side, and the relation that they leave: same bits,
    same math, or different experiment. For two run folders the recorded update digests are compared
    too; where the same bits were promised and are not there, the exit code is 4.
    """
    one, other = open_subject(a), open_subject(b)
    changed = _changed(one, other)
    fingerprints = [_fingerprint(subject) for subject in (one, other)]
    claim = relation_of(one.experiment, fingerprints[0], other.experiment, fingerprints[1])
    updates = _updates(one, other)
    if as_json:
        print_json(_as_json(one, other, changed, claim, updates))
    else:
        _print(a, b, changed, claim, updates)
    promised = claim.relation == "same bits" and None not in fingerprints
    if promised and updates is not None and updates.first_unequal is not None:
        raise Mismatch(
            f"{a} and {b} promise the same bits and differ at step {updates.first_unequal}",
            ["one of them was computed wrong, or its state was changed: elinvar checkpoint check DIR"],
        )


def _changed(one: Subject, other: Subject) -> list[tuple[str, str, Any, Any]]:
    """(side, path, value in one, value in other)."""
    changed = [
        ("experiment", f"experiment.{path}", old, new)
        for path, old, new in differences(one.experiment, other.experiment)
    ]
    if one.execution is not None and other.execution is not None:
        changed += [
            ("execution", f"execution.{path}", old, new)
            for path, old, new in differences(one.execution, other.execution)
        ]
    return changed


def _fingerprint(subject: Subject) -> dict[str, str] | None:
    if subject.folder is None:
        return None
    attempts = subject.folder.attempts()
    if not attempts:
        return None
    return {name: str(value) for name, value in attempts[-1].start.fingerprint.items()}


def _updates(one: Subject, other: Subject) -> Updates | None:
    if one.folder is None or other.folder is None:
        return None
    digests = []
    for folder in (one.folder, other.folder):
        rows, _ = folder.metrics()
        digests.append({row.step: row.update_digest for row in effective(rows) if row.update_digest})
    steps = sorted(digests[0].keys() & digests[1].keys())
    unequal = [step for step in steps if digests[0][step] != digests[1][step]]
    return Updates(steps=steps, first_unequal=unequal[0] if unequal else None)


def _print(
    a: str, b: str, changed: list[tuple[str, str, Any, Any]], claim: Claim, updates: Updates | None
) -> None:
    if changed:
        rows = [[path, toml_text(old), toml_text(new)] for _, path, old, new in changed]
        print_table(["changed", a, b], rows)
    else:
        print_lines("no value differs")
    print_lines("", f"relation: {claim.relation}", *(f"  {reason}" for reason in claim.because))
    if updates is None:
        return
    if not updates.steps:
        print_lines("update digests: no step has one in both")
    elif updates.first_unequal is None:
        print_lines(
            f"update digests: equal at all {len(updates.steps)} common steps, up to {updates.steps[-1]}"
        )
    else:
        print_lines(f"update digests: first unequal at step {updates.first_unequal}")


def _as_json(
    one: Subject,
    other: Subject,
    changed: list[tuple[str, str, Any, Any]],
    claim: Claim,
    updates: Updates | None,
) -> dict[str, object]:
    return {
        "relation": claim.relation,
        "because": list(claim.because),
        "experiment_digests": [experiment_digest(one.experiment), experiment_digest(other.experiment)],
        "changed": [{"side": side, "path": path, "a": old, "b": new} for side, path, old, new in changed],
        "updates": None
        if updates is None
        else {"common_steps": updates.steps, "first_unequal": updates.first_unequal},
    }
