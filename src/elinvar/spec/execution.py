"""HOW it is computed: the execution. No field here may change what is learned.

A reflection test ties each field to an invariance test by name: a new knob without one fails.
"""

from typing import Annotated, Literal

from msgspec import Meta, Struct

Positive = Annotated[int, Meta(ge=1)]
Count = Annotated[int, Meta(ge=0)]


class Input(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Input workers per rank (0: in the rank's own process) and the bytes of ready microbatches kept ahead."""

    workers: Annotated[int, Meta(ge=0, le=256)] = 0
    prefetch_bytes: Count = 16 * 2**20


class Checkpoint(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A generation every `every` steps (0: only at the end and on a stop); the newest `keep` are kept."""

    every: Count = 100
    keep: Annotated[int, Meta(ge=2)] = 3


class Record(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Update digest every `digest_every` steps, evaluation every `evaluate_every` (0: only at the last)."""

    digest_every: Count = 10
    evaluate_every: Count = 50


class Execution(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """ranks · sharding · ownership · device · input · checkpoints · record.

    `ranks = "auto"` is a launcher's WORLD_SIZE, else 1. `sharding` is the ZeRO stage.
    """

    ranks: Positive | Literal["auto"] = "auto"
    sharding: Literal[0, 1] = 0
    ownership: Literal["auto", "contiguous", "round_robin"] = "auto"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    input: Input = Input()
    checkpoint: Checkpoint = Checkpoint()
    record: Record = Record()
