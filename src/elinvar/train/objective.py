"""What is minimised: a sum of weighted losses and the sum of their weights, never their quotient."""

from typing import assert_never

import torch
import torch.nn.functional as F
from torch import Tensor

from elinvar.spec.objective import NextToken, Objective


def loss_sum(
    objective: Objective, logits_BTV: Tensor, targets_BT: Tensor, weights_BT: Tensor | None
) -> Tensor:
    """Σ weight·loss in nats over all targets: a 0-d float tensor of the logits' dtype.

    `logits_BTV` float [B, T, V], `targets_BT` int64 [B, T], `weights_BT` float [B, T] or None for
    weight 1 everywhere.
    """
    match objective:
        case NextToken():
            logits = logits_BTV.reshape(-1, logits_BTV.shape[-1])
            if weights_BT is None:
                return F.cross_entropy(logits, targets_BT.reshape(-1), reduction="sum")
            losses = F.cross_entropy(logits, targets_BT.reshape(-1), reduction="none")
            return torch.sum(losses * weights_BT.reshape(-1))
        case _:
            assert_never(objective)
