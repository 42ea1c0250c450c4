"""WHAT is learned: the experiment, one frozen value made of its parts.

State after step s is a pure function of (experiment, s). Nothing here may depend on how many
ranks, workers or restarts compute it; that is `execution.py`. The digests are in `canonical.py`.
"""

from typing import Annotated

from msgspec import Meta, Struct

from elinvar.spec.data import Data
from elinvar.spec.model import Model
from elinvar.spec.numerics import Numerics
from elinvar.spec.objective import NextToken, Objective
from elinvar.spec.optimizer import Optimizer
from elinvar.spec.schedule import Constant, Schedule

Positive = Annotated[int, Meta(ge=1)]


class Length(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the run stops, in steps. It only stops: it is no part of the digest."""

    steps: Positive


class Batch(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The global batch of a step: `microbatches` leaves of one fixed shape."""

    microbatches: Positive
    sequences_per_microbatch: Positive
    tokens_per_sequence: Positive

    @property
    def sequences(self) -> int:
        """Sequences per step."""
        return self.microbatches * self.sequences_per_microbatch

    @property
    def tokens(self) -> int:
        """Target tokens per step."""
        return self.sequences * self.tokens_per_sequence


class Experiment(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """model · data and its order · batch · objective · optimizer · schedule · numerics · seed."""

    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0
    length: Length
    model: Model
    data: Data = Data()
    batch: Batch
    objective: Objective = NextToken()
    optimizer: Optimizer
    schedule: Schedule = Constant()
    numerics: Numerics = Numerics()
