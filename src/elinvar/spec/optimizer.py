"""How gradients change parameters. Part of an experiment.

Noun: `AdamW` (Loshchilov & Hutter 2019, arXiv 1711.05101, Algorithm 2), with the global gradient
norm clipped before it.
"""

from typing import Annotated, Literal

from msgspec import Meta, Struct


class AdamW(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="adamw"):
    """AdamW with decoupled weight decay; `decay` says which tensors it touches.

    `max_grad_norm` bounds the global L2 norm; 0 switches clipping off.
    """

    lr: Annotated[float, Meta(ge=0)]
    beta1: Annotated[float, Meta(ge=0, lt=1)] = 0.9
    beta2: Annotated[float, Meta(ge=0, lt=1)] = 0.95
    eps: Annotated[float, Meta(gt=0)] = 1e-8
    weight_decay: Annotated[float, Meta(ge=0)] = 0.1
    decay: Literal["matrices", "all"] = "matrices"
    max_grad_norm: Annotated[float, Meta(ge=0)] = 1.0


Optimizer = AdamW
