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


def gradients(model: nn.Module, microbatch: Microbatch, objective: Objective) -> Gradients:
    """Forward and backward of one leaf, from nothing but the parameters, its tokens and its keys."""
    parameters = list(model.parameters())
    inputs_BT, targets_BT, weights_BT = to_device(microbatch, parameters[0].device)
    streams = Streams(microbatch.seed, microbatch.step, microbatch.index)
    loss = loss_sum(objective, model(inputs_BT, streams), targets_BT, weights_BT)
    sums = torch.autograd.grad(loss, parameters, allow_unused=True)
    return Gradients(loss.detach(), list(sums), microbatch.num_targets)


class Window:
    """One rank's leaves of one step: their fold so far, losses, denominators and samples."""

    def __init__(self, num_leaves: int) -> None:
        self.fold = Fold(num_leaves)
        self.losses: list[Tensor] = []
        self.denominators: list[int] = []
        self.samples: list[Sequence[int]] = []

    def add(self, microbatch: Microbatch, found: Gradients) -> None:
        """Take in one leaf; a rank adds its leaves in ascending order."""
        self.fold.push((0, microbatch.index), found.sums)
        self.losses.append(found.loss_sum)
        self.denominators.append(found.denominator)
        self.samples.append([occurrence.sample.index for occurrence in microbatch.occurrences])
