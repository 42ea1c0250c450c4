"""Gradients of one microbatch, and a step's worth of them.

Nouns: `Gradients`, the gradient of the *sum* of a leaf's losses together with its denominator;
`Window`, what one rank computed of a step: its part of the fold. Nothing is divided here.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from elinvar.data.batch import Microbatch
from elinvar.numerics.reduce import Fold
from elinvar.numerics.streams import Streams
from elinvar.spec.objective import Objective
from elinvar.train.objective import loss_sum


@dataclass(frozen=True)
class Gradients:
    """Of one leaf: Σ weight·loss (0-d), its gradient by parameter (None: not used), Σ weight."""

    loss_sum: Tensor
    sums: list[Tensor | None]
    denominator: int


def to_device(microbatch: Microbatch, device: torch.device) -> tuple[Tensor, Tensor, Tensor | None]:
    """(inputs [B, T] int64, targets [B, T] int64, weights [B, T] float32 or None) on `device`."""
    tokens_BT1 = torch.from_numpy(microbatch.tokens_BT1).to(device)
    weights = microbatch.weights_BT
    weights_BT = None if weights is None else torch.from_numpy(weights).to(device)
    return tokens_BT1[:, :-1].contiguous(), tokens_BT1[:, 1:].contiguous(), weights_BT


def gradients(
    model: nn.Module,
    microbatch: Microbatch,
    objective: Objective,
    onto: Sequence[Tensor | None] | None = None,
) -> Gradients:
    """Forward and backward of one leaf, from nothing but the parameters, its tokens and its keys.

    With `onto`, another leaf's sums, the result is onto + this leaf's: autograd adds each parameter's
    finished gradient to it in place, one elementwise addition as the fold would make.
    """
    parameters = list(model.parameters())
    inputs_BT, targets_BT, weights_BT = to_device(microbatch, parameters[0].device)
    streams = Streams(microbatch.seed, microbatch.step, microbatch.index)
    loss = loss_sum(objective, model(inputs_BT, streams), targets_BT, weights_BT)
    for parameter, start in zip(parameters, onto or [None] * len(parameters), strict=True):
        parameter.grad = start
    torch.autograd.backward(loss)
    sums = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    return Gradients(loss.detach(), sums, microbatch.num_targets)


class Window:
    """One rank's leaves of one step: their fold so far, losses, denominators and samples."""

    def __init__(self, num_leaves: int) -> None:
        self.fold = Fold(num_leaves)
        self.losses: list[Tensor] = []
        self.denominators: list[int] = []
        self.samples: list[Sequence[int]] = []

    def compute(self, model: nn.Module, microbatch: Microbatch, objective: Objective) -> None:
        """Take in one leaf; a rank computes its leaves in ascending order."""
        leaf = microbatch.index
        left = self.fold.take_left(leaf)
        found = gradients(model, microbatch, objective, left)
        self.fold.push((0, leaf) if left is None else (1, leaf // 2), found.sums)
        self.losses.append(found.loss_sum)
        self.denominators.append(found.denominator)
        self.samples.append([occurrence.sample.index for occurrence in microbatch.occurrences])
