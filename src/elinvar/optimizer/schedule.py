"""The learning rate of a step, as a pure function of the schedule and the step number."""

import math
from typing import assert_never

from elinvar.spec.schedule import Constant, Cosine, Schedule


def lr_at(schedule: Schedule, lr: float, step: int) -> float:
    """The learning rate used by update number `step` (the first is 1).

    Warm-up grows linearly and reaches `lr` at step `warmup_steps`. Cosine: Loshchilov & Hutter
    2017, arXiv 1608.03983, equation 5 with one period, then constant.
    """
    if step < 1:
        raise ValueError(f"steps are counted from 1, got {step}")
    if step <= schedule.warmup_steps:
        return lr * step / schedule.warmup_steps
    match schedule:
        case Constant():
            return lr
        case Cosine():
            assert schedule.decay_steps is not None, "resolve() writes decay_steps out"
            span = schedule.decay_steps - schedule.warmup_steps
            progress = min(1.0, (step - schedule.warmup_steps) / span) if span > 0 else 1.0
            floor = lr * schedule.final_fraction
            return floor + (lr - floor) * 0.5 * (1 + math.cos(math.pi * progress))
        case _:
            assert_never(schedule)
