"""Run folders made with the record's own API, as a run would leave them: no training, known numbers."""

import math
from pathlib import Path

import msgspec

from elinvar.record.attempt import AttemptEnd, AttemptStart
from elinvar.record.events import Event
from elinvar.record.folder import RunFolder
from elinvar.record.ledger import LedgerRow, ids_digest
from elinvar.record.manifest import (
    Commit,
    Manifest,
    encode_commit,
    encode_manifest,
    generation_name,
    manifest_digest,
)
from elinvar.record.metrics import Evaluation, MetricsRow
from elinvar.record.proof import Case, Proof, write_proof
from elinvar.spec.canonical import experiment_digest, math_digest
from elinvar.spec.execution import Execution
from elinvar.spec.read import experiment_json, read

BEGAN = 1_700_000_000.0
TEXTS = [
    "CLAUDIUS.\nHow is it that the clouds still hang on you?\n\nHAMLET.\nNot so, my lord; I am too much i' the sun.",
    "ROSALIND.\nI pray you, do not fall in love with me,\nFor I am falser than vows made in wine.",
    "</script><script>alert(1)</script> & <b>not bold</b>",
]


def digest_of(step):
    return f"{(step * 2654435761) % 2**64:016x}" * 4


def noise(step, seed):
    return math.sin(step * 12.9898 + seed * 78.233) * 43758.5453 % 1.0 - 0.5


def loss_of(step):
    return 2.05 + 4.9 * math.exp(-step / 38) + 0.16 * noise(step, 1)


def metrics_row(attempt, step, steps=200, **more):
    skipped = step == 77
    times = {
        "input": 0.004 + 0.002 * abs(noise(step, 2)),
        "forward_backward": 0.215 + 0.03 * noise(step, 3),
        "exchange": 0.021 + 0.006 * noise(step, 4),
        "update": 0.018 + 0.004 * noise(step, 5),
    }
    if step % 50 == 0:
        times["checkpoint"] = 0.11
    step_time = sum(times.values()) + 0.003
    evaluation = None
    if step % 25 == 0:
        held_out = 2.12 + 4.7 * math.exp(-step / 40)
        bits = held_out * 8192 / (21000 * math.log(2))
        evaluation = Evaluation(loss=held_out, tokens=8192, bytes=21000, bits_per_byte=bits)
    warm = min(1.0, step / 20)
    values = {
        "loss": None if skipped else loss_of(step),
        "denominator": 2048,
        "tokens": 2048,
        "grad_norm": None if skipped else 0.35 + 2.2 * math.exp(-step / 30) + 0.12 * noise(step, 6),
        "lr": 0.003 * warm * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * max(0, step - 20) / (steps - 20)))),
        "skipped": skipped,
        "update_digest": digest_of(step) if step % 10 == 0 else None,
        "evaluation": evaluation,
        "times": times,
        "peak_rss_bytes": 312_000_000 + 40_000 * step,
        "step_time_s": step_time,
        "tokens_per_s": 2048 / step_time,
    }
    return MetricsRow(attempt=attempt, step=step, **(values | more))


def start(attempt, from_step, ranks, **more):
    execution = msgspec.to_builtins(Execution(ranks=ranks, sharding=int(ranks > 2)))
    return AttemptStart(
        attempt=attempt, time_s=BEGAN + 100 * attempt, from_step=from_step, execution=execution,
        machine={"name": "workstation", "cores": 4}, fingerprint={"device": "cpu"},
        versions={"elinvar": "0.1.0", "torch": "2.13.0", "python": "3.11.2"},
        command=["elinvar", "train", "tiny"], plan={"memory_bytes": 335_000_000, "steps": 200}, **more,
    )  # fmt: skip


def commit(folder, step, sequence, attempt, journals):
    nonce = f"{sequence:08x}"
    path = folder.generations_path / generation_name(step, digest_of(step), nonce)
    path.mkdir()
    manifest = Manifest(
        step=step, update_digest=digest_of(step), experiment_digest="a" * 64, math_digest="b" * 64,
        dataset_digest="c" * 64, fingerprint_digest="d" * 64, tensors=[], scalars={"step": step},
    )  # fmt: skip
    data = encode_manifest(manifest)
    (path / "manifest.json").write_bytes(data)
    record = Commit(
        step=step, update_digest=digest_of(step), manifest_digest=manifest_digest(data),
        time_s=BEGAN + 100 * attempt + step, nonce=nonce, sequence=sequence,
    )  # fmt: skip
    (path / "commit.json").write_bytes(encode_commit(record))
    tell(
        journals, attempt, step, "generation",
        name=path.name, update_digest=digest_of(step), seconds=0.11, bytes=11_900_000,
    )  # fmt: skip
    return path.name


def tell(journals, attempt, step, kind, **data):
    time_s = BEGAN + 100 * attempt + (step or 0)
    journals.events.append(Event(attempt=attempt, time_s=time_s, kind=kind, step=step, data=data))


def run_steps(journals, attempt, first, last, **more):
    for step in range(first, last + 1):
        journals.metrics.append(metrics_row(attempt, step, **more))
        ids = range((step - 1) * 16, step * 16)
        journals.ledger.append(
            LedgerRow(
                attempt=attempt, step=step, position=ids[0], count=16, epoch=0, ids_digest=ids_digest(ids)
            )
        )


def fresh_folder(path: Path, overrides=()) -> RunFolder:
    """A run that was created and never started."""
    return RunFolder.create(path, experiment_json(read("tiny", overrides).experiment))


def eventful_folder(path: Path) -> RunFolder:
    """200 steps: killed at 68 on 2 ranks, resumed from 50 on 3 and stopped at 120, finished on 1."""
    folder = fresh_folder(path)
    journals = folder.journals()
    journals.attempts.append(start(1, 0, 2))
    tell(journals, 1, 0, "start", ranks=2)
    tell(journals, 1, 0, "sample_text", for_step=1, texts=TEXTS)
    run_steps(journals, 1, 1, 50)
    first = commit(folder, 50, 1, 1, journals)
    run_steps(journals, 1, 51, 68)
    journals.attempts.append(start(2, 50, 3, parent_generation=first))
    tell(journals, 2, 50, "discarded", from_step=51, to_step=68)
    tell(journals, 2, 50, "start", ranks=3)
    # The rows left behind stay as they were; the later attempt's are in front.
    run_steps(journals, 2, 51, 100)
    tell(journals, 2, 77, "skipped_step", reason="gradient is not finite", samples=list(range(1216, 1232)))
    commit(folder, 100, 2, 2, journals)
    run_steps(journals, 2, 101, 120)
    tell(journals, 2, 112, "fault", message="rank 2 was lost: exit code -9", rank=2)
    second = commit(folder, 120, 3, 2, journals)
    journals.attempts.append(AttemptEnd(attempt=2, time_s=BEGAN + 261.5, to_step=120, reason="stopped"))
    journals.attempts.append(start(3, 120, 1, parent_generation=second))
    tell(journals, 3, 120, "start", ranks=1)
    run_steps(journals, 3, 121, 200)
    commit(folder, 150, 4, 3, journals)
    commit(folder, 200, 5, 3, journals)
    journals.attempts.append(AttemptEnd(attempt=3, time_s=BEGAN + 348.25, to_step=200, reason="completed"))
    journals.close()
    put_proof(folder)
    return folder


def put_proof(folder: RunFolder) -> None:
    experiment = folder.experiment()
    names = [
        "1 rank",
        "2 ranks",
        "3 ranks, ZeRO-1",
        "4 ranks",
        "3 input workers",
        "4 ranks with ZeRO-1, SIGKILL at step 17, resumed on 1 with 3 workers",
    ]
    cases = [
        Case(
            name=name, execution={"ranks": index + 1}, digests={10: digest_of(10), 20: digest_of(20)},
            relation="reference" if index == 0 else "same bits", expected="reference" if index == 0 else "same bits",
            tokens=40960, skipped=0, repeated=0, seconds=3.2 + index, ok=True,
        )
        for index, name in enumerate(names)
    ]  # fmt: skip
    cases.append(
        Case(
            name="torch DDP, for contrast", execution={}, digests={20: digest_of(21)}, relation="different",
            expected="different", tokens=40960, skipped=0, repeated=0, seconds=4.0, ok=True,
        )
    )  # fmt: skip
    proof = Proof(
        experiment_digest=experiment_digest(experiment), math_digest=math_digest(experiment), steps=20,
        claim="same bits", fingerprint={"device": "cpu"}, cases=cases, ok=True,
    )  # fmt: skip
    write_proof(folder.proof_path, proof)
