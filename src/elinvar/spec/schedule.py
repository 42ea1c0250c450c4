"""How the learning rate moves with the step. Part of an experiment.

Nouns: `Constant` and `Cosine` (Loshchilov & Hutter 2017, arXiv 1608.03983, without restarts),
both after a linear warm-up counted in steps.
"""

from typing import Annotated

from msgspec import Meta, Struct

Steps = Annotated[int, Meta(ge=0)]


class Constant(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="constant"
):
    """lr after `warmup_steps` steps of linear growth."""

    warmup_steps: Steps = 0


class Cosine(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="cosine"):
    """Warm-up, then half a cosine down to `final_fraction` of lr at `decay_steps`, constant after it.

    An absent `decay_steps` resolves to `experiment.length.steps` and is written out.
    """

    warmup_steps: Steps = 0
    decay_steps: Annotated[int, Meta(ge=1)] | None = None
    final_fraction: Annotated[float, Meta(ge=0, le=1)] = 0.1


Schedule = Constant | Cosine
