"""The process-wide switches of PyTorch that an experiment's numerics fix, set in one place."""

import os

import torch
from torch.utils import deterministic

from elinvar.spec.numerics import Numerics


def apply(numerics: Numerics) -> None:
    """Set threads, deterministic kernels and full fp32 products for this process."""
    # cuBLAS reads this when it is first used; without it deterministic products are refused on CUDA.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.set_num_threads(numerics.threads)
    # The same switch as torch.use_deterministic_algorithms, which also imports the compiler (seconds a rank).
    torch.set_deterministic_debug_mode("error" if numerics.deterministic else "default")
    # Filling fresh memory costs a pass over it and hides nothing: we never read what we did not write.
    deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # made at run time
    torch.set_float32_matmul_precision("highest")
    if torch.cuda.is_available():
        torch.backends.cudnn.benchmark = False
        torch.backends.cudnn.allow_tf32 = False
