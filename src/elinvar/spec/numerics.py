"""With which arithmetic it is learned. Part of an experiment, left out of its math digest."""

from typing import Annotated, Literal

from msgspec import Meta, Struct


class Numerics(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Precision, threads and kernels that may move bits.

    `precision` is the dtype of matrix products; parameters, gradients, norms, softmax of the loss
    and optimizer state are fp32 always. `attention` picks the fused or the written-out softmax
    (dropout needs the written-out one). `non_finite` says what a step with a non-finite gradient
    or denominator 0 does.
    """

    precision: Literal["fp32", "bf16"] = "fp32"
    threads: Annotated[int, Meta(ge=1, le=1024)] = 1
    attention: Literal["sdpa", "explicit"] = "sdpa"
    deterministic: bool = True
    non_finite: Literal["skip", "stop"] = "skip"
