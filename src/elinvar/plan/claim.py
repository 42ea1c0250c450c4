"""What is promised about two runs before either is compared.

Noun: `Claim`, a relation with its reasons. The relation follows from the digests of the two
experiments and the two fingerprints alone; a claim is never a measurement (that is a proof).
"""

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from elinvar.spec.canonical import experiment_digest, math_digest
from elinvar.spec.experiment import Experiment

Relation = Literal["same bits", "same math", "different experiment"]
Fingerprint = Mapping[str, str]

FREE = (
    "rank count",
    "ZeRO stage",
    "ownership",
    "input workers and prefetch",
    "checkpoint cadence",
    "kill and resume",
    "restart on another rank count",
)
"""What one experiment may change on one fingerprint without moving a bit."""

SAME_MATH_CHANGES = (
    "the same sequences a step cut into other microbatches",
    "numerics: precision, threads, attention, deterministic",
    "another fingerprint: processor, device, build of torch",
)
"""What keeps the mathematics and moves bits."""

DIFFERENT_CHANGES = ("model", "data", "batch size", "objective", "optimizer", "schedule", "seed")
"""What learns something else."""


class Claim(Struct, frozen=True, kw_only=True):
    """The relation promised, and why."""

    relation: Relation
    because: tuple[str, ...]


def relation_of(
    one: Experiment,
    one_fingerprint: Fingerprint | None,
    other: Experiment,
    other_fingerprint: Fingerprint | None,
) -> Claim:
    """What is promised about a run of `one` and a run of `other`.

    A fingerprint of None is not known yet; then equal experiments claim the same bits on condition
    that the fingerprints turn out equal, and the reasons say so.
    """
    if experiment_digest(one) != experiment_digest(other):
        if math_digest(one) != math_digest(other):
            return Claim(relation="different experiment", because=("the math digests differ",))
        return Claim(
            relation="same math",
            because=("only numerics, or how the same sequences are cut into microbatches, differ",),
        )
    if not one.numerics.deterministic:
        return Claim(relation="same math", because=("experiment.numerics.deterministic is false",))
    if one_fingerprint is None or other_fingerprint is None:
        return Claim(
            relation="same bits",
            because=("equal experiment digests", "on condition that the fingerprints are equal"),
        )
    moved = differing(one_fingerprint, other_fingerprint)
    if moved:
        return Claim(
            relation="same math", because=tuple(f"the fingerprints differ in {line}" for line in moved)
        )
    return Claim(relation="same bits", because=("equal experiment digests", "equal fingerprints"))


def differing(one: Fingerprint, other: Fingerprint) -> tuple[str, ...]:
    """One line for each part in which two fingerprints differ: its name and both values."""
    return tuple(
        f"{name}: {one.get(name, 'absent')} and {other.get(name, 'absent')}"
        for name in sorted(one.keys() | other.keys())
        if one.get(name) != other.get(name)
    )


def claim_across_executions(experiment: Experiment) -> Claim:
    """What is promised about any two executions of one experiment on one fingerprint."""
    if not experiment.numerics.deterministic:
        return Claim(
            relation="same math",
            because=(
                "experiment.numerics.deterministic is false: kernels may add in another order each time",
            ),
        )
    return Claim(relation="same bits", because=("one experiment", "one fingerprint"))
