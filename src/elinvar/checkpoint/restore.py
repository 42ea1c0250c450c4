"""From a generation back to a state, on any number of ranks.

Every byte that is used was hashed when it was written and is hashed again here; the restored
state's update digest must be the one in the generation's name. The newest generation that passes
is taken, and the reasons why newer ones did not are returned, never swallowed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from elinvar.checkpoint.payload import read_verified
from elinvar.data.cursor import Cursor
from elinvar.errors import ElinvarError, InvalidInput, Mismatch, RunFailed
from elinvar.identity import Digest
from elinvar.parallel.collective import gather_bytes
from elinvar.parallel.replicate import Replicas
from elinvar.record.folder import RunFolder
from elinvar.record.manifest import (
    Generation,
    Incomplete,
    Manifest,
    TensorEntry,
    list_generations,
    list_incomplete,
    read_manifest,
)
from elinvar.spec.canonical import math_digest
from elinvar.train.state import RunState, digest_state

Target = tuple[int, int, Tensor]
"""Elements [start, stop) of a flattened logical tensor, wanted in a 1-D tensor of that length."""


@dataclass(frozen=True)
class Restored:
    """A state, the generation it came from, and why newer generations were passed over."""

    state: RunState
    generation: Generation
    rejected: tuple[str, ...]


Candidate = Generation | Incomplete
"""A generation to try, or a folder whose damaged commit record is a reason to go further back."""


def candidates(generations: Path, at: int | None) -> list[Candidate]:
    """Committed generations to try, newest first; with `at`, those of exactly that step.

    Without `at`, folders with a damaged commit record stand before the generations of lower steps:
    `restore` cannot take them, and says that it passed them over. Raises InvalidInput, listing the
    steps there are, where none has the step `at`.
    """
    found = list_generations(generations)
    damaged = [entry for entry in list_incomplete(generations) if entry.is_damaged and entry.step is not None]
    if at is None:
        ordered: list[Candidate] = []
        left = sorted(damaged, key=lambda entry: (entry.step or 0, entry.name), reverse=True)
        for generation in sorted(found, key=lambda g: (g.sequence, g.step), reverse=True):
            newer = [entry for entry in left if (entry.step or 0) > generation.step]
            left = left[len(newer) :]
            ordered += [*newer, generation]
        return [*ordered, *left]
    chosen = [generation for generation in found if generation.step == at]
    if not chosen:
        steps = ", ".join(str(g.step) for g in found) or "none"
        lines = [f"{entry.name}: {entry.reason}" for entry in damaged if entry.step == at]
        raise InvalidInput(f"no generation at step {at}", [*lines, f"generations are at step: {steps}"])
    newest_first: list[Generation] = sorted(chosen, key=lambda g: g.sequence, reverse=True)
    return [*newest_first]


def restore(
    state: RunState,
    replicas: Replicas,
    found: Sequence[Candidate],
    dataset: Digest | None,
    math: Digest | None = None,
) -> Restored:
    """Fill `state` from the first of `found` that verifies on every rank; collective.

    With `math`, the math digest of the run's experiment, a generation of another one does not verify.
    Raises InvalidInput where the data set is another one than the generation's cursor counts in,
    RunFailed where no generation verifies.
    """
    rejected: list[str] = []
    for generation in found:
        reason = _take(state, generation, math)
        reasons = [row.decode() for row in gather_bytes(replicas.world, reason.encode())]
        failed = next((row for row in reasons if row), "")
        if not failed and isinstance(generation, Generation):
            if dataset is not None:
                _check_dataset(state, generation, dataset)
            found_digest = digest_state(state, replicas)
            if found_digest == generation.update_digest:
                return Restored(state, generation, tuple(rejected))
            failed = f"its state has digest {found_digest[:12]}, not the one in its name"
        rejected.append(f"{generation.name}: {failed.removeprefix(f'{generation.name}: ')}")
    raise RunFailed("no generation of this run can be restored", rejected)


def _take(state: RunState, candidate: Candidate, math: Digest | None) -> str:
    """Why this rank cannot take `candidate`; "" where `state` holds it now."""
    if isinstance(candidate, Incomplete):
        return candidate.reason
    try:
        _fill(state, candidate, read_manifest(candidate, math))
    except (InvalidInput, Mismatch) as error:
        return str(error)
    return ""


@dataclass(frozen=True)
class Loaded:
    """fp32 CPU parameters by name, their step, and why newer generations were passed over."""

    parameters: dict[str, Tensor]
    step: int
    rejected: tuple[str, ...]


def load_parameters(folder: RunFolder, step: int | None = None) -> Loaded:
    """The parameters of the newest generation that verifies, or of `step`. Raises InvalidInput where there is none."""
    rejected: list[str] = []
    found = candidates(folder.generations_path, step)
    math = math_digest(folder.experiment()) if found else None
    for generation in found:
        if isinstance(generation, Incomplete):
            rejected.append(f"{generation.name}: {generation.reason}")
            continue
        try:
            manifest = read_manifest(generation, math)
            loaded: dict[str, Tensor] = {}
            for entry in manifest.tensors:
                if entry.kind == "parameter":
                    flat = torch.empty(entry.num_elements, dtype=torch.float32)
                    read_tensor(generation, entry, [(0, entry.num_elements, flat)])
                    loaded[entry.name.removeprefix("parameter/")] = flat.view(entry.shape)
            return Loaded(loaded, generation.step, tuple(rejected))
        except ElinvarError as error:
            rejected.append(error.message)
    if not rejected:
        raise InvalidInput(f"{folder.path} has no generation yet", [f"elinvar resume {folder.path}"])
    raise InvalidInput(f"no generation of {folder.path} can be read", rejected)


def read_tensor(generation: Generation, entry: TensorEntry, targets: Sequence[Target]) -> None:
    """Copy the wanted elements of one logical tensor into `targets`, verifying every piece touched.

    Raises Mismatch naming tensor and file where a piece is short, missing or not what was written.
    """
    for piece in entry.pieces:
        wanted = [(max(a, piece.start), min(b, piece.stop), a, out) for a, b, out in targets]
        if not any(start < stop for start, stop, _, _ in wanted):
            continue
        data = read_verified(generation, entry.name, piece)
        values = torch.frombuffer(data, dtype=getattr(torch, entry.dtype))
        for start, stop, first, out in wanted:
            if start < stop:
                out[start - first : stop - first].copy_(values[start - piece.start : stop - piece.start])


def _fill(state: RunState, generation: Generation, manifest: Manifest) -> None:
    """Overwrite every field of `state` with what this rank needs of the generation."""
    entries = {entry.name: entry for entry in manifest.tensors}
    targets: dict[str, list[Target]] = {}
    for name, parameter in state.parameters.items():
        targets[f"parameter/{name}"] = [(0, parameter.numel(), parameter.detach().view(-1))]
        targets[f"exp_avg/{name}"], targets[f"exp_avg_sq/{name}"] = [], []
    for kind, moments in (("exp_avg", state.exp_avg), ("exp_avg_sq", state.exp_avg_sq)):
        for piece, tensor in zip(state.held, moments, strict=True):
            targets[f"{kind}/{piece.name}"].append((piece.start, piece.stop, tensor))
    _check_names(generation, entries, targets, state)
    for name, wanted in targets.items():
        if wanted:
            read_tensor(generation, entries[name], wanted)
    scalars = manifest.scalars
    state.step = int(scalars["step"] or 0)
    state.optimizer_steps = int(scalars["optimizer_steps"] or 0)
    state.tokens = int(scalars["tokens"] or 0)
    state.cursor = Cursor(
        dataset=Digest(str(scalars["cursor_dataset"])), position=int(scalars["cursor_position"] or 0)
    )


def _check_names(
    generation: Generation,
    entries: Mapping[str, TensorEntry],
    targets: Mapping[str, Sequence[Target]],
    state: RunState,
) -> None:
    """Both ways strict: nothing missing, nothing left over, every shape and dtype as it is here."""
    missing, extra = sorted(set(targets) - set(entries)), sorted(set(entries) - set(targets))
    if missing or extra:
        raise Mismatch(f"{generation.name} holds other tensors: missing {missing}, unknown {extra}")
    for name, entry in entries.items():
        shape = list(state.parameters[name.partition("/")[2]].shape)
        if entry.shape != shape or entry.dtype != "float32":
            raise Mismatch(
                f"{generation.name}: {name} is {entry.dtype} {entry.shape}, the model has float32 {shape}"
            )


def _check_dataset(state: RunState, generation: Generation, dataset: Digest) -> None:
    if state.cursor.dataset != dataset:
        raise InvalidInput(
            "the tokenized data set is not the one this run was reading",
            [
                f"generation {generation.name} counts in {state.cursor.dataset}",
                f"the data now gives            {dataset}",
                "the source's bytes are the same, so the tokenizers library changed",
                "install the version of it that attempts.jsonl names, or fork into a new run",
            ],
        )
