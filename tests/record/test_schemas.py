"""The form on disk is final: each golden file was written once and is read and written the same for ever.

Keys that a newer minor version may add are ignored by this one.
"""

import json
from pathlib import Path

import msgspec
import pytest

from elinvar.record.attempt import AttemptEnd, AttemptRow, AttemptStart
from elinvar.record.events import KINDS, Event
from elinvar.record.ledger import LedgerRow
from elinvar.record.lineage import Lineage, encode_lineage
from elinvar.record.manifest import Commit, Manifest, Piece, TensorEntry, encode_commit, encode_manifest
from elinvar.record.metrics import Evaluation, MetricsRow
from elinvar.record.proof import Case, Proof, encode_proof

GOLDEN = Path(__file__).parent / "golden"
A, B, C = "a" * 64, "b" * 64, "c" * 64


def line(row):
    return msgspec.json.encode(row) + b"\n"


VALUES = {
    "attempt_start": (
        AttemptStart(
            attempt=2, time_s=1700000000.25, from_step=40, execution={"ranks": 2, "sharding": 1},
            machine={"name": "here", "cores": 2}, fingerprint={"device": "cpu"}, versions={"torch": "2.13.0"},
            parent_generation="00000040-aaaaaaaaaaaa-0011223a", command=["elinvar", "resume", "runs/a"],
            accepted="same math", plan={"memory_bytes": 123, "steps": 200},
        ), AttemptRow, line,
    ),
    "attempt_end": (
        AttemptEnd(attempt=2, time_s=1700000009.5, to_step=60, reason="failed", message="disk full"), AttemptRow, line,
    ),
    "event": (
        Event(attempt=2, time_s=1700000001.0, kind="fault", step=41, data={"rank": 1, "message": "gone"}), Event, line,
    ),
    "metrics": (
        MetricsRow(
            attempt=2, step=41, loss=2.5, denominator=2048, tokens=2048, grad_norm=0.75, lr=0.003, update_digest=A,
            evaluation=Evaluation(loss=2.25, tokens=8192, bytes=20000, bits_per_byte=1.3295),
            times={"input": 0.001, "forward_backward": 0.5}, peak_rss_bytes=300000000, step_time_s=0.51,
            tokens_per_s=4015.6862745098038,
        ), MetricsRow, line,
    ),
    "metrics_skipped": (
        MetricsRow(attempt=1, step=2, loss=None, denominator=0, tokens=0, grad_norm=None, lr=0.0, skipped=True),
        MetricsRow, line,
    ),
    "ledger": (LedgerRow(attempt=2, step=41, position=640, count=16, epoch=0, ids_digest=B), LedgerRow, line),
    "lineage": (
        Lineage(run="runs/a", step=40, generation="00000040-aaaaaaaaaaaa-0011223a", experiment_digest=C), Lineage,
        encode_lineage,
    ),
    "manifest": (
        Manifest(
            step=40, update_digest=A, experiment_digest=B, math_digest=C, dataset_digest=A, fingerprint_digest=B,
            tensors=[
                TensorEntry(
                    name="norm.weight", kind="parameter", dtype="float32", shape=[6], lanes="0123456789abcdef" * 2,
                    pieces=[
                        Piece(file="rank-0.bin", offset=64, length=16, start=0, stop=4, blake3=A),
                        Piece(file="rank-1.bin", offset=0, length=8, start=4, stop=6, blake3=B),
                    ],
                )
            ],
            scalars={"step": 40, "cursor": 640, "scale": 1.0, "note": None},
            parent="00000020-bbbbbbbbbbbb-0011223b", run_id="tiny-012345",
        ), Manifest, encode_manifest,
    ),
    "commit": (
        Commit(step=40, update_digest=A, manifest_digest=B, time_s=1700000000.5, nonce="0011223a", sequence=2), Commit,
        encode_commit,
    ),
    "proof": (
        Proof(
            experiment_digest=A, math_digest=B, steps=20, claim="same bits", fingerprint={"device": "cpu"},
            cases=[
                Case(
                    name="3 ranks", execution={"ranks": 3}, digests={10: A, 20: B}, relation="same bits",
                    expected="same bits", tokens=40960, skipped=0, repeated=0, seconds=4.5, ok=True,
                )
            ],
            ok=True, time_s=1700000000.0, versions={"torch": "2.13.0"},
        ), Proof, encode_proof,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", VALUES)
def test_what_is_on_disk_stays_as_it_is(name):
    value, kind, encode = VALUES[name]
    golden = (GOLDEN / f"{name}.json").read_bytes()
    assert encode(value) == golden
    assert msgspec.json.decode(golden, type=kind) == value


@pytest.mark.parametrize("name", VALUES)
def test_keys_of_a_newer_minor_version_are_ignored(name):
    value, kind, _ = VALUES[name]

    def grown(tree):
        match tree:
            case dict():
                return {k: v if k in FREE else grown(v) for k, v in tree.items()} | {"added_later": [1]}
            case list():
                return [grown(item) for item in tree]
            case _:
                return tree

    tree = grown(json.loads((GOLDEN / f"{name}.json").read_bytes()))
    assert msgspec.json.decode(json.dumps(tree), type=kind) == value


# Free dictionaries: their keys are the writer's.
FREE = {
    "execution", "machine", "fingerprint", "versions", "plan", "data", "times", "scalars", "digests",
}  # fmt: skip


def test_no_golden_file_is_without_its_value():
    assert {path.stem for path in GOLDEN.glob("*.json")} == set(VALUES)


def test_each_kind_of_event_is_documented():
    assert all(KINDS.values())
    assert {
        "start",
        "stop",
        "fault",
        "retry",
        "skipped_step",
        "sample_text",
        "generation",
        "retained",
    } <= set(KINDS)
