"""The plan: counts against independent formulas, resolution, claims, and what does not fit."""

import subprocess
import sys

import pytest
from msgspec.structs import replace

from elinvar.errors import DoesNotFit, InvalidInput
from elinvar.plan.claim import claim_across_executions, relation_of
from elinvar.plan.compute import flops_per_step, flops_per_token, parameters
from elinvar.plan.machine import Machine
from elinvar.plan.plan import Rate, launcher_ranks, make_plan
from elinvar.spec.data import Data
from elinvar.spec.execution import Execution, Input
from elinvar.spec.experiment import Batch, Experiment, Length
from elinvar.spec.model import Llama
from elinvar.spec.numerics import Numerics
from elinvar.spec.optimizer import AdamW

MODEL = Llama(
    vocab_size=1000,
    hidden_size=64,
    num_layers=3,
    num_heads=4,
    num_kv_heads=2,
    intermediate_size=160,
)
EXPERIMENT = Experiment(
    length=Length(steps=10),
    model=MODEL,
    data=Data(digest="ab" * 32),
    batch=Batch(microbatches=8, sequences_per_microbatch=2, tokens_per_sequence=32),
    optimizer=AdamW(lr=1e-3),
)
MACHINE = Machine(name="test", cores=4, memory_bytes=64 * 2**30)


def planned(execution=None, machine=MACHINE, experiment=EXPERIMENT, **more):
    return make_plan(experiment, execution or Execution(), machine, **more)


def terms(plan):
    return {term.name: term.num_bytes for term in plan.memory.terms}


@pytest.mark.parametrize("tied", [True, False])
def test_parameters_by_hand(tied):
    counts = parameters(replace(MODEL, tie_embeddings=tied))
    # q and o: 64x64 each; k and v: 64x32 each; gate, up, down: 64x160 each; norms: two a layer and one.
    assert counts.embedding == 1000 * 64
    assert counts.attention == 3 * (2 * 64 * 64 + 2 * 64 * 32)
    assert counts.feed_forward == 3 * 3 * 64 * 160
    assert counts.norm == 7 * 64
    assert counts.output == (0 if tied else 1000 * 64)
    assert counts.total == 64_000 + 36_864 + 92_160 + 448 + (0 if tied else 64_000)


@pytest.mark.parametrize("tied", [True, False])
def test_operations_counted_one_product_at_a_time(tied):
    """The reference multiplies out the shape of every product of a forward pass, three times for both passes."""
    experiment = replace(EXPERIMENT, model=replace(MODEL, tie_embeddings=tied))
    batch, T = experiment.batch, 32

    def product(rows, inner, columns):
        return 2 * rows * inner * columns

    sequence = 0
    for _ in range(3):
        sequence += product(T, 64, 64) + 2 * product(T, 64, 32) + product(T, 64, 64)
        sequence += 4 * (product(T, 16, T) + product(T, T, 16))  # 4 heads of 16: scores, then values
        sequence += 2 * product(T, 64, 160) + product(T, 160, 64)
    sequence += product(T, 64, 1000)
    assert flops_per_step(experiment) == 3 * sequence * batch.sequences
    assert flops_per_token(experiment) * T == 3 * sequence


def test_ranks_and_ownership_resolve():
    plan = planned()
    assert (plan.ranks, plan.execution.ranks, plan.execution.ownership) == (1, 1, "contiguous")
    plan = planned(launcher_ranks=3)
    assert plan.execution == Execution(ranks=3, ownership="contiguous")
    assert plan.ownership == ((0, 1, 2), (3, 4, 5), (6, 7))
    plan = planned(Execution(ranks=3, ownership="round_robin"), launcher_ranks=3)
    assert plan.ownership == ((0, 3, 6), (1, 4, 7), (2, 5))
    assert (plan.steps, plan.tokens_per_step, plan.tokens) == (10, 512, 5120)


def test_a_launcher_that_contradicts_the_file_is_refused():
    with pytest.raises(InvalidInput, match=r"execution\.ranks is 2, but the launcher started 3"):
        planned(Execution(ranks=2), launcher_ranks=3)
    with pytest.raises(InvalidInput, match="but the launcher started 1"):
        planned(Execution(ranks=2), launcher_ranks=1)


def test_the_launcher_is_read_from_world_size():
    assert launcher_ranks({}) is None
    assert launcher_ranks({"WORLD_SIZE": "4"}) == 4
    for text in ("", "0", "-1", "2.0", "two", "²"):
        with pytest.raises(InvalidInput, match="WORLD_SIZE"):
            launcher_ranks({"WORLD_SIZE": text})


def test_memory_terms_follow_their_formulas():
    whole = 4 * parameters(MODEL).total
    one = terms(planned())
    assert one["parameters"] == whole
    assert one["gradients"] == 4 * whole  # 8 leaves: three finished sums and the leaf
    assert one["moments"] == 2 * whole
    assert one["logits"] == 3 * 4 * 64 * 1000
    assert "exchange" not in one
    two = terms(planned(Execution(ranks=2, sharding=1)))
    assert two["moments"] == whole
    assert two["gradients"] == 3 * whole
    assert two["exchange"] == whole + 2 * whole // 2
    assert terms(planned(Execution(ranks=2)))["moments"] == 2 * whole
    robin = terms(planned(Execution(ranks=2, ownership="round_robin")))
    assert robin["gradients"] == 4 * whole  # four leaves that are no neighbours
    assert robin["exchange"] == whole + 8 * whole // 2
    explicit = replace(EXPERIMENT, numerics=Numerics(attention="explicit"))
    assert terms(planned(experiment=explicit))["activations"] == one["activations"] + 3 * 4 * 64 * 4 * 32


def test_prefetch_counts_only_with_workers():
    assert terms(planned())["input"] == 2 * 33 * 8
    assert terms(planned(Execution(input=Input(workers=1))))["input"] == 16 * 2**20


def test_what_does_not_fit_names_the_first_term_to_cut():
    small = replace(MACHINE, memory_bytes=2**20)
    with pytest.raises(DoesNotFit, match="the rank needs") as caught:
        planned(machine=small)
    assert caught.value.exit_code == 3
    assert " 0.0" not in str(caught.value)  # every term in a unit that shows it
    assert "what helps most: a machine with more memory" in str(caught.value)
    per_rank = planned().memory.num_bytes
    planned(machine=replace(MACHINE, memory_bytes=per_rank))
    with pytest.raises(
        DoesNotFit, match=r"2 ranks need.*\n(?:.*\n)*  what helps most: fewer execution\.ranks"
    ):
        planned(Execution(ranks=2), replace(MACHINE, memory_bytes=per_rank + 2**20))


def test_on_a_device_each_rank_has_its_own_memory():
    device = replace(MACHINE, device="cuda", devices=2, device_memory_bytes=2**23)
    plan = planned(Execution(ranks=2), device)
    assert plan.device == "cuda"
    assert "process" not in terms(plan)
    with pytest.raises(DoesNotFit, match=r"what helps most: execution\.ownership"):
        planned(Execution(ranks=2), replace(device, device_memory_bytes=2**21))
    unknown = planned(machine=replace(device, device_memory_bytes=None))
    assert any("not checked" in line for line in unknown.warnings)


def test_a_run_on_cuda_needs_a_device_for_each_rank():
    cuda = Execution(device="cuda")
    with pytest.raises(DoesNotFit, match="test has no CUDA device"):
        planned(cuda)
    with pytest.raises(DoesNotFit, match="this machine has no CUDA device"):
        planned(cuda, replace(MACHINE, name="this"))
    one = replace(MACHINE, device="cuda", devices=1, device_memory_bytes=2**40)
    assert planned(cuda, one).device == "cuda"
    with pytest.raises(DoesNotFit, match="2 ranks need a CUDA device each, but test has 1"):
        planned(Execution(ranks=2), one)
    assert planned(Execution(ranks=2, device="cpu"), one).device == "cpu"
    # A launcher may have spread the ranks over machines, which only the run can see.
    assert "2 ranks, but test has 1 device" in planned(launcher_ranks=2, machine=one).warnings


def test_what_is_left_of_a_run_is_what_takes_time():
    rate = Rate(tokens_per_s=512.0, because="attempt 1")
    assert (planned(rate=rate, from_step=4).time.seconds, planned(from_step=4).steps_left) == (6.0, 6)
    assert (planned(rate=rate, from_step=10).time.seconds, planned(from_step=99).steps_left) == (0.0, 0)


def test_time_only_from_a_known_speed_and_with_its_assumption():
    assert planned().time is None
    rate = planned(rate=Rate(tokens_per_s=512.0, because="attempt 1")).time
    assert rate is not None
    assert (rate.seconds, rate.because) == (10.0, "attempt 1")
    fast = replace(MACHINE, flops_per_s=1e9)
    one, three = planned(machine=fast).time, planned(Execution(ranks=3), fast).time
    assert one.seconds == pytest.approx(10 * flops_per_step(EXPERIMENT) / 1e9)
    assert three.seconds == pytest.approx(one.seconds * 3 / 8)  # 3 + 3 + 2 leaves
    crowded = planned(Execution(ranks=8), fast).time
    assert crowded.seconds == pytest.approx(one.seconds / 8 * 2)  # 8 threads on 4 cores


def test_warnings_price_idle_ranks_and_crowded_cores():
    assert planned(Execution(ranks=4)).warnings == ()
    uneven = planned(Execution(ranks=3)).warnings
    assert len(uneven) == 1
    assert "11% of their time" in uneven[0]
    idle = planned(Execution(ranks=10)).warnings
    assert idle[0].startswith("2 of 10 ranks own no microbatch (there are 8)")
    assert idle[1].startswith("10 computing threads share 4 cores")


BITS = {"torch": "2.13.0", "cpu": "a"}


@pytest.mark.parametrize(
    ("other", "fingerprint", "relation"),
    [
        (EXPERIMENT, BITS, "same bits"),
        (replace(EXPERIMENT, length=Length(steps=99)), BITS, "same bits"),
        (EXPERIMENT, None, "same bits"),
        (EXPERIMENT, BITS | {"cpu": "b"}, "same math"),
        (EXPERIMENT, {"torch": "2.13.0"}, "same math"),
        (replace(EXPERIMENT, numerics=Numerics(threads=2)), BITS, "same math"),
        (
            replace(
                EXPERIMENT, batch=Batch(microbatches=4, sequences_per_microbatch=4, tokens_per_sequence=32)
            ),
            BITS,
            "same math",
        ),
        (
            replace(
                EXPERIMENT, batch=Batch(microbatches=8, sequences_per_microbatch=4, tokens_per_sequence=32)
            ),
            BITS,
            "different experiment",
        ),
        (replace(EXPERIMENT, seed=1), BITS, "different experiment"),
        (replace(EXPERIMENT, optimizer=AdamW(lr=2e-3)), BITS, "different experiment"),
        (replace(EXPERIMENT, data=Data(digest="cd" * 32)), BITS, "different experiment"),
    ],
)
def test_relations(other, fingerprint, relation):
    for one, two in ((EXPERIMENT, other), (other, EXPERIMENT)):
        assert relation_of(one, BITS, two, fingerprint).relation == relation


def test_a_claim_says_which_part_of_the_fingerprint_moved():
    claim = relation_of(EXPERIMENT, BITS, EXPERIMENT, BITS | {"cpu": "b"})
    assert claim.because == ("the fingerprints differ in cpu: a and b",)


def test_nondeterministic_kernels_never_claim_bits():
    loose = replace(EXPERIMENT, numerics=Numerics(deterministic=False))
    assert claim_across_executions(loose).relation == "same math"
    assert relation_of(loose, BITS, loose, BITS).relation == "same math"
    assert planned().claim.relation == "same bits"
    assert planned(experiment=loose).claim.relation == "same math"


def test_planning_imports_neither_torch_nor_numpy():
    code = (
        "import sys\n"
        "import elinvar.plan.plan, elinvar.plan.machine\n"
        "elinvar.plan.machine.this_machine()\n"
        "print(sorted({'torch', 'numpy'} & set(sys.modules)))"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
        == "[]\n"
    )
