"""The shapes of what commands print under --json where the command builds it from parts.

Read by `build_reference.py`, which makes the schemas in docs/reference/schemas from them; the outputs
themselves are compared with those schemas in tests/cli/test_json_outputs.py.
"""

from typing import Any, Literal

from msgspec import Struct


class Shape(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Every key is there, and no other."""


class Show(Shape, frozen=True):
    """A run resolved. `execution` is null for a folder without an attempt, `origins` for any folder."""

    name: str
    experiment_digest: str
    math_digest: str
    experiment: dict[str, Any]
    execution: dict[str, Any] | None
    machine: str | None
    origins: dict[str, str] | None


class Change(Shape, frozen=True):
    """A value that differs; null where a side has no such key."""

    side: Literal["experiment", "execution"]
    path: str
    a: Any
    b: Any


class CommonUpdates(Shape, frozen=True):
    """Steps at which both runs recorded an update digest, and the first where they differ."""

    common_steps: list[int]
    first_unequal: int | None


class Diff(Shape, frozen=True):
    """Two runs compared. `lineage` says of each that is a fork from where; `updates` is null unless both are folders."""

    relation: Literal["same bits", "same math", "different experiment"]
    because: list[str]
    experiment_digests: tuple[str, str]
    changed: list[Change]
    lineage: tuple[str | None, str | None]
    updates: CommonUpdates | None


class Init(Shape, frozen=True):
    """The file that was written."""

    path: str
    preset: str


class Report(Shape, frozen=True):
    """The page that was written, and the state of the run in it."""

    path: str
    bytes: int
    run: str
    state: str
    step: int
    steps: int
    notices: list[Any]


class ConsumedSample(Shape, frozen=True):
    """One sample of a step."""

    microbatch: int
    position: int
    epoch: int
    sample: int
    text: str


class SamplesOfStep(Shape, frozen=True):
    """What `--step` prints."""

    step: int
    attempt: int
    dataset: str
    ids_digest: str
    samples: list[ConsumedSample]


class Sighting(Shape, frozen=True):
    """A place where a sample was seen."""

    step: int
    microbatch: int
    position: int
    epoch: int


class StepsOfSample(Shape, frozen=True):
    """What `--sample` prints."""

    sample: int
    dataset: str
    held_out: bool
    last_step: int
    seen: list[Sighting]
    text: str


class Windows(Shape, frozen=True):
    """How an experiment cuts the data; lengths in tokens, the rest in windows, steps and epochs."""

    tokens: int
    total: int
    held_out: int
    training: int
    steps_per_epoch: float
    epochs: float


class Data(Shape, frozen=True):
    """What `data show` and `data build` print. `windows` is null where no experiment is named."""

    source: str
    digest: str
    source_digest: str
    tokenizer: dict[str, Any]
    tokenizer_digest: str
    documents: int
    bytes: int
    tokens: int
    bytes_per_token: float
    vocab_size: int
    ids_used: int
    dtype: str
    store: str
    windows: Windows | None


class DataCheck(Shape, frozen=True):
    """What `data check` prints of a store that is whole."""

    store: str
    digest: str
    tokens: int
    ok: bool


class GenerationSummary(Shape, frozen=True):
    """A committed generation; `time_s` is Unix time."""

    name: str
    step: int
    update_digest: str
    sequence: int
    time_s: float
    bytes: int


class IncompleteFolder(Shape, frozen=True):
    """A folder among the generations that is none."""

    path: str
    reason: str


class CheckpointList(Shape, frozen=True):
    """All generations, oldest first."""

    generations: list[GenerationSummary]
    incomplete: list[IncompleteFolder]


class CheckpointShow(GenerationSummary, frozen=True):
    """One generation and its manifest (schema record-manifest)."""

    manifest: dict[str, Any]


class CheckpointCheck(Shape, frozen=True):
    """The problems of each generation by name: none where it is sound. `ok` where all are."""

    checked: dict[str, list[str]]
    ok: bool
