"""The update: a step's gradients and denominators become the next state.

Nouns: `Totals` (what the ranks agree on before anything moves) and `StepReport`. The decision to
skip is taken from numbers that are equal on all ranks, so it is the same decision everywhere.
"""

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from elinvar.data.cursor import Cursor
from elinvar.errors import RunFailed
from elinvar.numerics.reduce import fold_scalars
from elinvar.optimizer.adamw import adamw_update, is_decayed
from elinvar.optimizer.clip import clip, clip_factor
from elinvar.optimizer.schedule import lr_at
from elinvar.parallel.collective import gather_rows
from elinvar.parallel.replicate import Replicas
from elinvar.spec.experiment import Experiment
from elinvar.train.gradient import Window
from elinvar.train.state import RunState


@dataclass(frozen=True)
class Totals:
    """What all ranks know of a step before its update.

    The float64 loss sum, Σ weight, sample indices by leaf, and the flags that ranks raised, one row
    a rank.
    """

    loss_sum: float
    denominator: int
    samples: tuple[tuple[int, ...], ...]
    flags: list[list[int]]


@dataclass(frozen=True)
class StepReport:
    """What a step did.

    `loss` in nats per target token and `grad_norm` before clipping are None where they are not
    finite; `skipped` says why parameters did not move ("" where they did).
    """

    step: int
    loss: float | None
    denominator: int
    grad_norm: float | None
    lr: float
    skipped: str
    samples: tuple[tuple[int, ...], ...] = field(repr=False)


def totals(window: Window, replicas: Replicas, sequences_per_leaf: int, flags: Sequence[int]) -> Totals:
    """Exchange losses, denominators, samples and `flags` (small integers, one meaning a place).

    One all-to-all of int64: a float64 loss travels as its bits, so nothing is rounded.
    """
    most = max(map(len, replicas.owned))
    width = 2 + sequences_per_leaf
    row = [*flags]
    losses = torch.stack(window.losses).double().cpu().tolist() if window.losses else []
    for loss, denominator, samples in zip(losses, window.denominators, window.samples, strict=True):
        row += [_bits(loss), denominator, *samples]
    row += [0] * (len(flags) + most * width - len(row))
    rows = gather_rows(
        replicas.world, torch.tensor(row, dtype=torch.int64, device=replicas.world.device)
    ).tolist()
    by_leaf: dict[int, tuple[float, int, tuple[int, ...]]] = {}
    for leaves, found in zip(replicas.owned, rows, strict=True):
        for turn, leaf in enumerate(leaves):
            start = len(flags) + turn * width
            loss_bits, denominator, *samples = found[start : start + width]
            by_leaf[leaf] = (_float(loss_bits), denominator, tuple(samples))
    ordered = [by_leaf[leaf] for leaf in range(replicas.num_leaves)]
    return Totals(
        loss_sum=fold_scalars([loss for loss, _, _ in ordered]),
        denominator=sum(denominator for _, denominator, _ in ordered),
        samples=tuple(samples for _, _, samples in ordered),
        flags=[found[: len(flags)] for found in rows],
    )


def update(
    state: RunState, window: Window, agreed: Totals, replicas: Replicas, experiment: Experiment
) -> tuple[RunState, StepReport]:
    """Reduce, divide once, clip, and step; returns the next state (the same object, changed in place).

    A non-finite gradient or loss, or a denominator of 0, leaves parameters, moments and AdamW's
    counter as they are; step, cursor and schedule advance. Raises RunFailed, naming the samples,
    where the experiment says stop instead of skip.
    """
    step = state.step + 1
    lr = lr_at(experiment.schedule, experiment.optimizer.lr, step)
    reduced = replicas.reduce(window.fold)
    norm: float | None = None
    skipped = ""
    if agreed.denominator == 0:
        skipped = "no target tokens"
    else:
        if reduced:  # a rank beyond the last row has no piece
            torch._foreach_div_(reduced, float(agreed.denominator))
        norm = replicas.norm(reduced)
        if not math.isfinite(norm) or not math.isfinite(agreed.loss_sum):
            skipped, norm = "non-finite gradients", norm if math.isfinite(norm) else None
    if skipped and experiment.numerics.non_finite == "stop":
        samples = ", ".join(str(index) for leaf in agreed.samples for index in leaf)
        raise RunFailed(
            f"step {step} has {skipped}",
            [f"its samples: {samples}", "experiment.numerics.non_finite is stop; skip would go on"],
        )
    if not skipped:
        assert norm is not None
        clip(reduced, clip_factor(norm, experiment.optimizer.max_grad_norm))
        state.optimizer_steps += 1
        adamw_update(
            [piece.of(state.parameters[piece.name]) for piece in state.held],
            replicas.deliver(reduced),
            state.exp_avg,
            state.exp_avg_sq,
            optimizer=experiment.optimizer,
            lr=lr,
            step=state.optimizer_steps,
            decayed=[is_decayed(experiment.optimizer, piece.shape) for piece in state.held],
        )
        replicas.publish(state.storage)
    state.step = step
    state.tokens += agreed.denominator
    state.cursor = Cursor(
        dataset=state.cursor.dataset, position=state.cursor.position + experiment.batch.sequences
    )
    loss = agreed.loss_sum / agreed.denominator if agreed.denominator else math.nan
    return state, StepReport(
        step=step,
        loss=loss if math.isfinite(loss) else None,
        denominator=agreed.denominator,
        grad_norm=norm,
        lr=lr,
        skipped=skipped,
        samples=agreed.samples,
    )


def _bits(value: float) -> int:
    (bits,) = struct.unpack("<q", struct.pack("<d", value))
    return int(bits)


def _float(bits: int) -> float:
    (value,) = struct.unpack("<d", struct.pack("<q", bits))
    return float(value)
