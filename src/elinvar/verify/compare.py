"""Two runs, one claim: are the states after the same steps the same, bit by bit?

Nouns: `Evidence` (what a run's record says) and the comparison of two. Only records are read; what
a run computed is named there by update digests, and what it consumed by its ledger.
"""

from dataclasses import dataclass

import torch

from elinvar.checkpoint.restore import load_parameters
from elinvar.data.feed import Feed
from elinvar.record.folder import RunFolder
from elinvar.record.ledger import audit
from elinvar.record.manifest import read_manifest
from elinvar.record.metrics import effective


@dataclass(frozen=True)
class Evidence:
    """Of a run up to a step: update digests by step, target tokens, and what its ledger proves."""

    digests: dict[int, str]
    tokens: int
    skipped: int
    repeated: int
    wrong_steps: tuple[int, ...]


def evidence(folder: RunFolder, feed: Feed, steps: int) -> Evidence:
    """Read the record of steps 1 to `steps`; the ledger is held against the order itself."""
    rows, _ = folder.metrics()
    kept = [row for row in effective(rows) if row.step <= steps]
    ledger, _ = folder.ledger()
    found = audit(
        ledger, steps, feed.batch.sequences, lambda start, stop: feed.order.indices(start, stop).tolist()
    )
    return Evidence(
        digests={row.step: row.update_digest for row in kept if row.update_digest is not None},
        tokens=sum(row.tokens for row in kept),
        skipped=sum(span.stop - span.start for span in found.skipped),
        repeated=sum(span.stop - span.start for span in (*found.repeated, *found.beyond)),
        wrong_steps=tuple(found.wrong_steps),
    )


def first_difference(reference: Evidence, other: Evidence) -> int | None:
    """The first step at which both have a digest and the digests differ; None where none does."""
    common = sorted(reference.digests.keys() & other.digests.keys())
    return next((step for step in common if reference.digests[step] != other.digests[step]), None)


def differing_tensors(one: RunFolder, other: RunFolder, step: int) -> list[str]:
    """Names of the tensors whose contents differ between two runs' generations of `step`."""
    found = []
    for folder in (one, other):
        generation = next((g for g in folder.generations() if g.step == step), None)
        if generation is None:
            return []
        found.append({entry.name: entry.lanes for entry in read_manifest(generation).tensors})
    return [name for name in found[0] if found[0][name] != found[1].get(name)]


def largest_distance(reference: RunFolder, parameters: dict[str, torch.Tensor], step: int) -> float:
    """The largest absolute difference of any parameter from the reference's at `step`."""
    ours = load_parameters(reference, step).parameters
    return max(float((ours[name] - parameters[name]).abs().max()) for name in ours)
