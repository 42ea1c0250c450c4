"""From which state of which run a fork began: `lineage.json`, present in forked folders only."""

from pathlib import Path

import msgspec
from msgspec import Struct

from elinvar.errors import InvalidInput
from elinvar.identity import Digest
from elinvar.record.durable import read_bytes

SCHEMA = 1


class Lineage(Struct, frozen=True, kw_only=True):
    """The parent: its folder as given, the step and generation (folder name), and its experiment."""

    run: str
    step: int
    generation: str
    experiment_digest: Digest
    schema: int = SCHEMA


def encode_lineage(lineage: Lineage) -> bytes:
    """Its canonical bytes: keys sorted, one newline at the end."""
    return msgspec.json.encode(lineage, order="sorted") + b"\n"


def read_lineage(path: Path) -> Lineage | None:
    """The lineage at `path`, None where the run is no fork. Raises InvalidInput for one that is unreadable."""
    if not path.exists():
        return None
    try:
        lineage = msgspec.json.decode(read_bytes(path), type=Lineage)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path} is damaged: {error}") from None
    if lineage.schema > SCHEMA:
        raise InvalidInput(f"{path} has schema {lineage.schema}, newer than {SCHEMA}")
    return lineage
