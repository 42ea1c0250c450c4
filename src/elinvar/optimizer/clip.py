"""Clipping by the global norm: one factor for every piece of every gradient."""

from collections.abc import Sequence

import torch
from torch import Tensor


def clip_factor(norm: float, max_norm: float) -> float:
    """min(1, max_norm / (norm + 1e-6)), as `torch.nn.utils.clip_grad_norm_`; 1 where max_norm is 0 (off)."""
    if max_norm == 0:
        return 1.0
    return min(1.0, max_norm / (norm + 1e-6))


def clip(gradients: Sequence[Tensor], factor: float) -> None:
    """Scale the pieces in place; a factor of 1 leaves every bit as it is."""
    if factor < 1.0 and gradients:
        torch._foreach_mul_(list(gradients), factor)
