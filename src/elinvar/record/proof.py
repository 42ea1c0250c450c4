"""The evidence for a claim: what `verify` reran, and whether the states came out as promised.

Nouns: `Proof`, `Case`. A proof is a whole file (`proof.json`): it is there complete, or not.
"""

from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, field

from elinvar.errors import InvalidInput
from elinvar.identity import Digest
from elinvar.record.durable import place_failed, read_bytes, write_whole

SCHEMA = 1


class Case(Struct, frozen=True, kw_only=True):
    """One rerun. `digests` are update digests by step; `relation` is what was found to hold between
    this case and the reference, `expected` what was claimed ("same bits", "same math", "different";
    the reference itself is "reference"). `tokens` target tokens consumed, `skipped` and `repeated`
    positions of the order left out or consumed twice, `seconds` wall time. `ok`: as expected.
    """

    name: str
    execution: dict[str, Any]
    digests: dict[int, str]
    relation: str
    expected: str
    tokens: int
    skipped: int
    repeated: int
    seconds: float
    ok: bool
    message: str = ""


class Proof(Struct, frozen=True, kw_only=True):
    """All cases of one `verify`; `ok` where every case came out as expected."""

    experiment_digest: Digest
    math_digest: Digest
    steps: int
    claim: str
    fingerprint: dict[str, Any]
    cases: list[Case]
    ok: bool
    time_s: float = 0.0
    versions: dict[str, str] = field(default_factory=dict)
    schema: int = SCHEMA


def encode_proof(proof: Proof) -> bytes:
    """Its bytes: fields in the order of the schema, indented, one newline at the end."""
    return msgspec.json.format(msgspec.json.encode(proof), indent=2) + b"\n"


def write_proof(path: Path, proof: Proof) -> None:
    """Put `proof` at `path`, durable and all at once; an older proof there is replaced."""
    try:
        write_whole(path, encode_proof(proof))
    except OSError as error:
        raise place_failed(path, error) from error


def read_proof(path: Path) -> Proof:
    """The proof at `path`. Raises InvalidInput where it is missing, damaged or of a newer schema."""
    data = read_bytes(path)
    try:
        proof = msgspec.json.decode(data, type=Proof)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path} is damaged: {error}") from None
    if proof.schema > SCHEMA:
        raise InvalidInput(f"{path} has schema {proof.schema}, newer than {SCHEMA}")
    return proof
