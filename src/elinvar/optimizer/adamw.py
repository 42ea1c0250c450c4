"""AdamW on pieces of logical tensors: the update of a piece is the piece of the update.

Source: Loshchilov & Hutter 2019, arXiv 1711.05101, Algorithm 2, in the order of operations of
PyTorch's foreach implementation, with which it agrees bit for bit. Every operation is elementwise
and split-invariant; PyTorch's fused CPU kernel is not, and is never used.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from elinvar.spec.optimizer import AdamW

CPU_CHUNK = 1 << 16
"""Elements at a time on a CPU: all six arrays stay in cache, which halves the time of an update."""


@dataclass(frozen=True)
class _Numbers:
    """What one update multiplies with; plain float64 numbers, computed once."""

    keep: float
    beta1: float
    beta2: float
    correction2: float
    eps: float
    step_size: float


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
    """One update in place on contiguous float32 pieces of equal shapes.

    `step` counts the updates made, from 1; `decayed[i]` says whether weight decay touches piece i.
    """
    numbers = _Numbers(
        keep=1 - lr * optimizer.weight_decay,
        beta1=optimizer.beta1,
        beta2=optimizer.beta2,
        correction2=math.sqrt(1 - optimizer.beta2**step),
        eps=optimizer.eps,
        step_size=-lr / (1 - optimizer.beta1**step),
    )
    pieces = list(zip(parameters, gradients, exp_avg, exp_avg_sq, strict=True))
    for flag in (True, False):
        chosen = [piece for piece, is_chosen in zip(pieces, decayed, strict=True) if is_chosen == flag]
        decays = flag and optimizer.weight_decay != 0
        if chosen and chosen[0][0].device.type == "cpu":
            update_in_chunks(chosen, numbers, decays=decays)
        elif chosen:
            update_foreach(chosen, numbers, decays=decays)


Group = Sequence[tuple[Tensor, Tensor, Tensor, Tensor]]
"""(parameter, gradient, exp_avg, exp_avg_sq) pieces."""


def update_foreach(group: Group, numbers: _Numbers, *, decays: bool) -> None:
    """All pieces at once by multi-tensor kernels: few launches on a device."""
    parameters, gradients, first, second = (list(column) for column in zip(*group, strict=True))
    if decays:
        torch._foreach_mul_(parameters, numbers.keep)
    torch._foreach_lerp_(first, gradients, 1 - numbers.beta1)
    torch._foreach_mul_(second, numbers.beta2)
    torch._foreach_addcmul_(second, gradients, gradients, 1 - numbers.beta2)
    divisor = torch._foreach_sqrt(second)  # noqa: SLF001  # the only foreach interface there is
    torch._foreach_div_(divisor, numbers.correction2)
    torch._foreach_add_(divisor, numbers.eps)
    torch._foreach_addcdiv_(parameters, first, divisor, numbers.step_size)


def update_in_chunks(group: Group, numbers: _Numbers, *, decays: bool) -> None:
    """The same operations a chunk at a time; elementwise, so no bit depends on where chunks end."""
    for piece in group:
        flat = (tensor.view(-1).split(CPU_CHUNK) for tensor in piece)
        for parameter, gradient, first, second in zip(*flat, strict=True):
            if decays:
                parameter.mul_(numbers.keep)
            first.lerp_(gradient, 1 - numbers.beta1)
            second.mul_(numbers.beta2).addcmul_(gradient, gradient, value=1 - numbers.beta2)
            divisor = second.sqrt().div_(numbers.correction2).add_(numbers.eps)
            parameter.addcdiv_(first, divisor, value=numbers.step_size)


def is_decayed(optimizer: AdamW, shape: Sequence[int]) -> bool:
    """Whether weight decay touches a tensor of this logical shape."""
    return optimizer.decay == "all" or len(shape) >= 2
