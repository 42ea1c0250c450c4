"""The update: against a plain float64 loop, and what a step without usable gradients leaves alone."""

import math

import pytest
import torch
import torch.nn.functional as F
from msgspec import structs

from elinvar.data.batch import Microbatch
from elinvar.errors import RunFailed
from elinvar.model.transformer import build
from elinvar.optimizer.schedule import lr_at
from elinvar.spec.numerics import Numerics
from elinvar.spec.optimizer import AdamW
from elinvar.train import gradient
from elinvar.train.evaluate import evaluate
from elinvar.train.objective import loss_sum
from experiments import WORLD, rank_of, settings_of, small_experiment, tensors_of


@pytest.fixture
def rank(experiment):
    return rank_of(experiment)


def unchanged(state, before):
    return all(torch.equal(a, b) for a, b in zip(tensors_of(state), before, strict=True))


class PlainLoop:
    """Twenty lines of ordinary training in float64: one batch a step, a mean loss, AdamW by its formula."""

    def __init__(self, rank):
        self.rank, self.experiment = rank, rank.experiment
        self.model = build(self.experiment.model, self.experiment.numerics, self.experiment.seed).double()
        self.first, self.second = ([torch.zeros_like(p) for p in self.model.parameters()] for _ in range(2))

    def step(self, step):
        experiment, spec = self.experiment, self.experiment.optimizer
        leaves = [self.rank.feed.training(step, i).tokens_BT1 for i in range(experiment.batch.microbatches)]
        tokens = torch.cat([torch.from_numpy(leaf) for leaf in leaves])
        logits = self.model(tokens[:, :-1], None)
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        found = torch.autograd.grad(loss, list(self.model.parameters()))
        norm = math.sqrt(sum(float((g * g).sum()) for g in found))
        factor = min(1.0, spec.max_grad_norm / (norm + 1e-6))
        lr = lr_at(experiment.schedule, spec.lr, step)
        with torch.no_grad():
            for p, g, m, v in zip(self.model.parameters(), found, self.first, self.second, strict=True):
                g = g * factor  # noqa: PLW2901 - the formula's own name
                m.copy_(spec.beta1 * m + (1 - spec.beta1) * g)
                v.copy_(spec.beta2 * v + (1 - spec.beta2) * g * g)
                corrected = m / (1 - spec.beta1**step), v / (1 - spec.beta2**step)
                decay = spec.weight_decay if p.dim() >= 2 else 0.0
                p.sub_(lr * (corrected[0] / (corrected[1].sqrt() + spec.eps) + decay * p))
        return float(loss.detach()), norm


def test_twenty_steps_follow_a_plain_float64_loop(folder):
    # A large eps, since AdamW turns a rounding error of a gradient near 0 into a whole step.
    experiment = small_experiment(folder, optimizer=AdamW(lr=1e-2, max_grad_norm=0.5, eps=1e-4))
    rank = rank_of(experiment)
    plain = PlainLoop(rank)
    clipped = 0
    for step in range(1, 21):
        report = rank.take()
        loss, norm = plain.step(step)
        assert report.loss == pytest.approx(loss, rel=1e-5)
        assert report.grad_norm == pytest.approx(norm, rel=1e-4)
        clipped += norm > 0.5
        assert report.lr == lr_at(experiment.schedule, 1e-2, step)
        assert (report.step, report.skipped, report.denominator) == (step, "", 80)
    for ours, theirs in zip(rank.state.parameters.values(), plain.model.parameters(), strict=True):
        torch.testing.assert_close(ours.double(), theirs.detach(), rtol=1e-3, atol=2e-5)
    assert clipped > 0
    assert loss < 3.5  # it learned: from ln(257) = 5.55


def test_the_state_counts_what_it_did(rank):
    for _ in range(3):
        rank.take()
    state = rank.state
    assert (state.step, state.optimizer_steps, state.tokens) == (3, 3, 3 * 80)
    assert state.cursor == rank.feed.cursor_after(3)
    assert state.parameters["embedding.weight"].data_ptr() == rank.model.embedding.weight.data_ptr()


def test_the_report_names_the_samples_in_leaf_order(rank):
    report = rank.take()
    expected = [rank.feed.training(1, leaf).occurrences[0].sample.index for leaf in range(5)]
    assert [samples[0] for samples in report.samples] == expected


# ---- steps whose gradients cannot be used


def spoil(monkeypatch, spoiled_leaf, value, *, loss_too):
    """Make one leaf's gradient (and its loss) non-finite, as an overflow would."""
    calls = iter(range(10**6))

    def spoiled(objective, logits, targets, weights):
        loss = loss_sum(objective, logits, targets, weights)
        if next(calls) % 5 != spoiled_leaf:
            return loss
        if loss_too:
            return loss * value
        # A finite loss: in the backward pass alone one element becomes `value`.
        return loss + (Once.apply(logits, value) - logits).sum() * 0.0

    monkeypatch.setattr(gradient, "loss_sum", spoiled)


class Once(torch.autograd.Function):
    """The identity, with one element of its gradient replaced."""

    @staticmethod
    def forward(ctx, logits, value):
        ctx.value = value
        return logits.clone()

    @staticmethod
    def backward(ctx, found):
        found = found.clone()
        found.view(-1)[7] = ctx.value
        return found, None


@pytest.mark.parametrize("loss_too", [False, True])
@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("spoiled_leaf", [0, 4])
def test_a_non_finite_gradient_moves_nothing_but_the_counters(
    rank, monkeypatch, value, spoiled_leaf, loss_too
):
    rank.take()
    before, first = tensors_of(rank.state), rank.state.scalars
    with monkeypatch.context() as patch:
        spoil(patch, spoiled_leaf, value, loss_too=loss_too)
        report = rank.take()
    assert unchanged(rank.state, before)
    assert report.skipped == "non-finite gradients"
    assert report.grad_norm is None
    assert (report.loss is None) == loss_too
    assert report.lr == lr_at(rank.experiment.schedule, rank.experiment.optimizer.lr, 2)
    assert rank.state.scalars == {**first, "step": 2, "tokens": 160, "cursor_position": 10}
    assert len(report.samples) == 5
    after = rank.take()
    assert after.skipped == ""
    assert (rank.state.step, rank.state.optimizer_steps) == (3, 2)
    assert not unchanged(rank.state, before)


def test_stop_names_the_samples_and_leaves_the_state(experiment, monkeypatch):
    stopping = structs.replace(experiment, numerics=Numerics(non_finite="stop"))
    rank = rank_of(stopping)
    samples = [o.sample.index for leaf in range(5) for o in rank.feed.training(1, leaf).occurrences]
    before, scalars = tensors_of(rank.state), rank.state.scalars
    spoil(monkeypatch, 2, math.nan, loss_too=True)
    with pytest.raises(RunFailed, match="step 1 has non-finite gradients") as caught:
        rank.take()
    assert f"its samples: {', '.join(map(str, samples))}" in caught.value.lines
    assert unchanged(rank.state, before)
    assert rank.state.scalars == scalars


def masked(rank, step):
    """A step whose leaves count no target."""
    window = gradient.Window(5)
    for leaf in range(5):
        found = rank.feed.training(step, leaf)
        weights = torch.zeros(1, 16).numpy()
        empty = Microbatch(step, leaf, found.tokens_BT1, found.occurrences, found.seed, weights)
        window.compute(rank.model, empty, rank.experiment.objective)
    return window


def test_a_step_without_targets_is_skipped(rank):
    rank.take()
    before, scalars = tensors_of(rank.state), rank.state.scalars
    report = rank.take(masked(rank, 2))
    assert (report.skipped, report.denominator) == ("no target tokens", 0)
    assert report.loss is None
    assert report.grad_norm is None
    assert unchanged(rank.state, before)
    assert rank.state.scalars == {**scalars, "step": 2, "cursor_position": 10}


def test_a_step_without_targets_stops_where_the_experiment_says_so(experiment):
    rank = rank_of(structs.replace(experiment, numerics=Numerics(non_finite="stop")))
    with pytest.raises(RunFailed, match="step 1 has no target tokens"):
        rank.take(masked(rank, 1))


# ---- evaluation


def test_evaluation_moves_no_bit(experiment):
    watched, alone = rank_of(experiment), rank_of(experiment)
    for _ in range(3):
        watched.take()
        digest = watched.digest
        evaluate(watched.model, watched.feed.held_out(), experiment.objective, WORLD)
        assert watched.digest == digest
        assert all(p.grad is None for p in watched.model.parameters())
        assert alone.take() is not None
        assert alone.digest == digest


def test_evaluation_is_the_mean_over_held_out_tokens(folder):
    experiment = small_experiment(folder, sequences=3)  # 7 held out: the last leaf is filled up
    rank = rank_of(experiment)
    rank.take()
    loss, tokens = evaluate(rank.model, rank.feed.held_out(), experiment.objective, WORLD)
    windows = [rank.feed.store.window(i, 16) for i in rank.feed.order.split.held_out_samples]
    batch = torch.stack([torch.from_numpy(window.astype("int64")) for window in windows])
    logits = rank.model.double()(batch[:, :-1], None)
    expected = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
    assert tokens == 7 * 16
    assert loss == pytest.approx(float(expected.detach()), rel=1e-6)


def test_nothing_held_out_is_no_number(rank):
    loss, tokens = evaluate(rank.model, [], rank.experiment.objective, WORLD)
    assert math.isnan(loss)
    assert tokens == 0


# ---- kernels


def test_two_threads_run_twice_give_the_same_bits(folder):
    experiment = small_experiment(folder, tokens=64, sequences=4, hidden=64, numerics=Numerics(threads=2))
    digests = []
    with settings_of(experiment.numerics):
        assert torch.get_num_threads() == 2
        for _ in range(2):
            rank = rank_of(experiment)
            digests.append([(rank.take().loss, rank.digest) for _ in range(3)])
    assert digests[0] == digests[1]
    assert len(set(digests[0])) == 3


def test_deterministic_algorithms_are_on_and_memory_is_not_filled():
    with settings_of(Numerics()):
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.utils.deterministic.fill_uninitialized_memory
        assert torch.get_float32_matmul_precision() == "highest"
        assert torch.get_num_threads() == 1
    with settings_of(Numerics(deterministic=False)):
        assert not torch.are_deterministic_algorithms_enabled()


def test_sums_into_repeated_rows_repeat():
    """The canary: without deterministic algorithms, two threads make this differ from run to run."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randint(0, 7, (3000,), generator=generator)
    values = torch.randn(3000, 16, generator=generator)
    with settings_of(Numerics(threads=2)):
        found = [torch.zeros(7, 16).index_put_((rows,), values, accumulate=True) for _ in range(300)]
    assert all(torch.equal(first, found[0]) for first in found)
