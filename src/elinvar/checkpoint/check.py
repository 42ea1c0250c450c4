"""Checking generations without restoring them: every byte, every hash, the digest in the name."""

import torch

from elinvar.checkpoint.restore import read_tensor
from elinvar.errors import ElinvarError
from elinvar.identity import Digest
from elinvar.numerics.digest import lanes, update_digest
from elinvar.record.manifest import Generation, read_manifest


def check_generation(generation: Generation, math_digest: Digest | None = None) -> list[str]:
    """What is wrong with a committed generation; empty where it is exactly what was written.

    With `math_digest`, that of the run's experiment, a generation of another experiment is wrong, too.
    """
    try:
        manifest = read_manifest(generation, math_digest)
    except ElinvarError as error:
        return [str(error)]
    problems: list[str] = []
    tensors = {}
    for entry in manifest.tensors:
        flat = torch.empty(entry.num_elements, dtype=getattr(torch, entry.dtype))
        try:
            read_tensor(generation, entry, [(0, entry.num_elements, flat)])
        except ElinvarError as error:
            problems.append(error.message)
            continue
        low, high = lanes(flat)
        if f"{low:016x}{high:016x}" != entry.lanes:
            problems.append(f"{generation.name}: {entry.name}: its elements do not have the recorded digest")
        tensors[entry.name] = (entry.dtype, entry.shape, (low, high))
    scalars = {name: v for name, v in manifest.scalars.items() if isinstance(v, int | str)}
    if not problems and update_digest(tensors, scalars) != generation.update_digest:
        problems.append(f"{generation.name}: the state does not have the update digest in its name")
    return problems
