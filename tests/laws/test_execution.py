"""The law of the house: no field of an execution moves a bit of what is learned.

One small experiment with everything that could break it (dropout, five microbatches, clipping, an epoch
that ends inside a step) runs under a change of each field. Losses, norms, update digests, consumed
samples and the held-out loss must be those of the reference, for each step. A new field without a case
fails `test_every_field_has_a_case`.
"""

import msgspec
import pytest

from elinvar.plan.machine import THIS, read_machine
from elinvar.record.folder import RunFolder
from elinvar.run.launch import launch
from elinvar.run.prepare import Asked, prepare
from elinvar.spec.execution import Execution
from elinvar.spec.explain import flat
from elinvar.spec.read import read, with_overrides

STEPS = 6
RUN = f"""
[experiment.length]
steps = {STEPS}
[experiment.model]
kind = "llama"
vocab_size = 257
hidden_size = 24
num_layers = 2
num_heads = 3
num_kv_heads = 1
intermediate_size = 40
dropout = 0.1
[experiment.numerics]
attention = "explicit"
[experiment.data]
source = "text.txt"
held_out = 3
[experiment.data.tokenizer]
kind = "bytes"
[experiment.batch]
microbatches = 5
sequences_per_microbatch = 2
tokens_per_sequence = 16
[experiment.optimizer]
kind = "adamw"
lr = 1e-2
max_grad_norm = 0.1
[execution]
ranks = 2
device = "cpu"
[execution.checkpoint]
every = 0
[execution.record]
digest_every = 1
evaluate_every = 2
"""

CASES = {
    "ranks": ["ranks=1", "ranks=3", "ranks=6"],  # 6: one rank owns no microbatch
    "sharding": ["sharding=1"],
    "ownership": ["ownership=round_robin", "ownership=round_robin ranks=3 sharding=1"],
    "device": ["device=auto"],  # on a machine with a GPU this is another fingerprint
    "input.workers": ["input.workers=2"],
    "input.prefetch_bytes": ["input.workers=2 input.prefetch_bytes=0"],
    "checkpoint.every": ["checkpoint.every=1"],
    "checkpoint.keep": ["checkpoint.every=1 checkpoint.keep=2"],
    "record.digest_every": ["record.digest_every=3"],
    "record.evaluate_every": ["record.evaluate_every=1"],
}


def test_every_field_has_a_case():
    assert set(CASES) == set(flat(Execution()))


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("law")
    (folder / "run.toml").write_text(RUN)
    # 31 windows of 16 targets, 28 of them trained on: 10 a step, so epochs end inside steps 3 and 6.
    (folder / "text.txt").write_text("".join(chr(97 + (i * i + i // 7) % 26) for i in range(16 * 31)))
    return folder


def run(folder, overrides):
    """Train under `overrides` of the execution; what its record says that must not depend on them."""
    reading = read(str(folder / "run.toml"))
    execution = with_overrides(reading.execution, overrides)
    path = folder / f"run-{'-'.join(overrides) or 'reference'}"
    preparation = prepare(
        Asked(
            name="law",
            experiment=reading.experiment,
            execution=execution,
            machine=read_machine(THIS),
            folder=path,
            quiet=True,
        )
    )
    preparation.end(launch(preparation.job))
    done = RunFolder.open(path)
    metrics, ledger = done.metrics()[0], done.ledger()[0]
    assert [row.step for row in metrics] == list(range(1, STEPS + 1))
    return {
        "learned": [(row.loss, row.grad_norm, row.lr, row.denominator, row.skipped) for row in metrics],
        "digests": {row.step: row.update_digest for row in metrics if row.update_digest},
        "consumed": [(row.step, row.position, row.count, row.epoch, row.ids_digest) for row in ledger],
        "held out": {row.step: row.evaluation for row in metrics if row.evaluation},
        "generation": done.generations()[-1].update_digest,
    }


@pytest.fixture(scope="module")
def reference(place):
    return run(place, [])


@pytest.mark.drill
@pytest.mark.parametrize("overrides", [case for cases in CASES.values() for case in cases])
def test_no_field_moves_a_bit(place, reference, overrides):
    if overrides == "device=auto":
        import torch

        if torch.cuda.is_available():
            pytest.skip("a GPU has another fingerprint: same math, by design")
    found = run(place, overrides.split())
    assert found["learned"] == reference["learned"]
    assert found["consumed"] == reference["consumed"]
    assert found["generation"] == reference["generation"]
    for name in ("digests", "held out"):
        common = found[name].keys() & reference[name].keys()
        assert STEPS in common
        assert {step: found[name][step] for step in common} == {
            step: reference[name][step] for step in common
        }


def test_the_reference_does_what_the_law_is_tested_on(reference):
    """Clipping and two ends of an epoch really happen, and every step has another state."""
    assert all(row[1] > 0.1 for row in reference["learned"])
    assert [row[3] for row in reference["consumed"]] == [0, 0, 0, 1, 1, 1]
    assert len(set(reference["digests"].values())) == STEPS
    assert msgspec.json.encode(reference["held out"][STEPS])
