"""AdamW on pieces of logical tensors: the update of a piece is the piece of the update.

Source: Loshchilov & Hutter 2019, arXiv 1711.05101, Algorithm 2, in the order of operations of
PyTorch's foreach implementation, with which it agrees bit for bit. Every operation is elementwise
and split-invariant; PyTorch's fused CPU kernel is not, and is never used.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from elinvar.spec.optimizer import AdamW


def adamw_update(
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor],
    exp_avg: Sequence[Tensor],
    exp_avg_sq: Sequence[Tensor],
    *,
    optimizer: AdamW,
    lr: float,
    step: int,
    decayed: Sequence[bool],
) -> None:
    """One update in place on float32 pieces of equal shapes; `step` counts the updates made, from 1.

    `decayed[i]` says whether weight decay touches piece i.
    """
    parameters, gradients = list(parameters), list(gradients)
    first, second = list(exp_avg), list(exp_avg_sq)
    if not parameters:
        return
    touched = [tensor for tensor, flag in zip(parameters, decayed, strict=True) if flag]
    if touched and optimizer.weight_decay:
        torch._foreach_mul_(touched, 1 - lr * optimizer.weight_decay)
    torch._foreach_lerp_(first, gradients, 1 - optimizer.beta1)
    torch._foreach_mul_(second, optimizer.beta2)
    torch._foreach_addcmul_(second, gradients, gradients, 1 - optimizer.beta2)
    correction1 = 1 - optimizer.beta1**step
    correction2 = math.sqrt(1 - optimizer.beta2**step)
    divisor = torch._foreach_sqrt(second)  # noqa: SLF001  # the only foreach interface there is
    torch._foreach_div_(divisor, correction2)
    torch._foreach_add_(divisor, optimizer.eps)
    torch._foreach_addcdiv_(parameters, first, divisor, -lr / correction1)


def is_decayed(optimizer: AdamW, shape: Sequence[int]) -> bool:
    """Whether weight decay touches a tensor of this logical shape."""
    return optimizer.decay == "all" or len(shape) >= 2
