"""`elinvar diff`: what differs between two runs, what equality that leaves, and whether it held."""

from pathlib import Path
from typing import Any, NamedTuple

import click
from msgspec import Struct
from msgspec.structs import replace

from elinvar.cli.subject import Subject, open_subject
from elinvar.cli.terminal import print_json, print_lines, print_table
from elinvar.errors import Mismatch
from elinvar.plan.claim import Claim, differing, relation_of
from elinvar.record.attempt import Attempt, kept_until
from elinvar.record.folder import RunFolder
from elinvar.record.metrics import effective
from elinvar.spec.canonical import experiment_digest
from elinvar.spec.explain import counted, differences, toml_text


class Updates(Struct, frozen=True, kw_only=True):
    """The update digests of two run folders at the steps where both have one."""

    steps: list[int]
    first_unequal: int | None


class Crossing(NamedTuple):
    """An attempt that went on as same math: the step from which on bits may have moved, and what moved them."""

    step: int
    said: str


@click.command("diff")
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(a: str, b: str, *, as_json: bool) -> None:
    """Compare two run files, presets or run folders.

    Prints the values that differ, each with its side, and the relation that they leave: same bits,
    same math, or different experiment. For two run folders the recorded update digests are compared
    too; where the same bits were promised and are not there, the exit code is 4. A run that once
    continued with --accept same-math promises its bits up to there.
    """
    one, other = open_subject(a), open_subject(b)
    changed = _changed(one, other)
    lines = [_line(subject) for subject in (one, other)]
    crossings = [*_crossings(one.name, lines[0]), *_crossings(other.name, lines[1])]
    begins = [_fingerprint(line[0]) if line else None for line in lines]
    ends = [_fingerprint(line[-1]) if line else None for line in lines]
    promise = _from_their_beginnings(
        one, other, relation_of(one.experiment, begins[0], other.experiment, begins[1])
    )
    claim = _from_their_beginnings(
        one, other, relation_of(one.experiment, ends[0], other.experiment, ends[1])
    )
    said = tuple(crossing.said for crossing in crossings)
    if said and claim.relation == "same bits":
        claim = Claim(relation="same math", because=said)
    elif said:
        claim = replace(claim, because=(*claim.because, *said))
    updates, forks = _updates(one, other), [_fork(one, other.folder), _fork(other, one.folder)]
    if as_json:
        print_json(_as_json(one, other, changed, claim, updates, forks))
    else:
        _print(a, b, changed, claim, updates, forks)
    unequal = None if updates is None else updates.first_unequal
    promised = promise.relation == "same bits" and None not in begins
    if promised and unequal is not None and all(unequal <= crossing.step for crossing in crossings):
        raise Mismatch(
            f"{a} and {b} promise the same bits and differ at step {unequal}",
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


def _line(subject: Subject) -> list[Attempt]:
    """The attempts of a run whose steps lead to its present state; none for what is no run."""
    if subject.folder is None:
        return []
    attempts, (events, _) = subject.folder.attempts(), subject.folder.events()
    writers = {str(event.data.get("name")): event.attempt for event in events if event.kind == "generation"}
    limits = kept_until(attempts, writers)
    return [
        attempt
        for attempt in attempts
        if (limit := limits[attempt.attempt]) is None or limit > attempt.from_step
    ]


def _fingerprint(attempt: Attempt) -> dict[str, str]:
    return {name: str(value) for name, value in attempt.start.fingerprint.items()}


def _crossings(name: str, line: list[Attempt]) -> list[Crossing]:
    """Where the run called `name` went on although bits may move there."""
    found: list[Crossing] = []
    for number, attempt in enumerate(line):
        here = _fingerprint(attempt)
        moved = differing(_fingerprint(line[number - 1]), here) if number else ()
        if moved or attempt.start.accepted:
            # Precision, attention and the cut into microbatches are in no fingerprint.
            what = "; ".join(moved) or "precision, attention or the cut into microbatches"
            said = f"{name} went on as same math after step {attempt.from_step}: {what}"
            found.append(Crossing(attempt.from_step, said))
    return found


def _from_their_beginnings(one: Subject, other: Subject, claim: Claim) -> Claim:
    """`claim`, or less where the two did not begin with the same state."""
    if claim.relation == "different experiment" or _origin(one) == _origin(other):
        return claim
    return Claim(relation="different experiment", because=("they began with different states: see lineage",))


def _origin(subject: Subject) -> tuple[int, str] | None:
    """The step and digest that a fork of another experiment began with; a fork of its own is as a fresh run."""
    lineage = None if subject.folder is None else subject.folder.lineage()
    if lineage is None or lineage.experiment_digest == experiment_digest(subject.experiment):
        return None
    return lineage.step, lineage.generation.split("-")[1]


def _fork(subject: Subject, against: RunFolder | None) -> str | None:
    """From where a fork came; None for what is none."""
    lineage = None if subject.folder is None else subject.folder.lineage()
    if lineage is None:
        return None
    parent = lineage.run
    if against is not None and against.path.resolve() == Path(parent).resolve():
        parent = "the other run"
    return f"{subject.name} is a fork of {parent} at step {lineage.step}"


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
    a: str,
    b: str,
    changed: list[tuple[str, str, Any, Any]],
    claim: Claim,
    updates: Updates | None,
    forks: list[str | None],
) -> None:
    if changed:
        rows = [[path, toml_text(old), toml_text(new)] for _, path, old, new in changed]
        print_table(["changed", a, b], rows)
    else:
        print_lines("no value differs")
    print_lines("", f"relation: {claim.relation}", *(f"  {reason}" for reason in claim.because))
    print_lines(*(f"lineage: {fork}" for fork in forks if fork is not None))
    if updates is None:
        return
    if not updates.steps:
        print_lines("update digests: no step has one in both")
    elif updates.first_unequal is None:
        steps = counted(len(updates.steps), "common step")
        print_lines(f"update digests: equal at {steps}, the last is {updates.steps[-1]}")
    else:
        print_lines(f"update digests: first unequal at step {updates.first_unequal}")


def _as_json(
    one: Subject,
    other: Subject,
    changed: list[tuple[str, str, Any, Any]],
    claim: Claim,
    updates: Updates | None,
    forks: list[str | None],
) -> dict[str, object]:
    return {
        "relation": claim.relation,
        "because": list(claim.because),
        "experiment_digests": [experiment_digest(one.experiment), experiment_digest(other.experiment)],
        "changed": [{"side": side, "path": path, "a": old, "b": new} for side, path, old, new in changed],
        "lineage": forks,
        "updates": None
        if updates is None
        else {"common_steps": updates.steps, "first_unequal": updates.first_unequal},
    }
