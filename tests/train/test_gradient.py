"""A step's gradient is (sum over leaves) / (sum of weights): one batch cut in any way, each token alike."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from elinvar.data.batch import Microbatch
from elinvar.model.transformer import build
from elinvar.numerics.reduce import Fold
from elinvar.spec.objective import NextToken
from elinvar.train.gradient import Window, gradients, to_device
from elinvar.train.objective import loss_sum
from experiments import small_experiment

OBJECTIVE = NextToken()
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def experiment(folder):
    return small_experiment(folder, tokens=110)


@pytest.fixture
def model(experiment):
    return build(experiment.model, experiment.numerics, experiment.seed).double()


def leaf(index, num_counted, *, first=0, length=110, num_sequences=1, weight=1.0):
    """A leaf whose first sequence counts `num_counted` targets from `first` on; other sequences count 0."""
    generator = np.random.default_rng(index)
    tokens = generator.integers(0, 256, (num_sequences, length + 1))
    weights = np.zeros((num_sequences, length), dtype=np.float32)
    weights[0, first : first + num_counted] = weight
    return Microbatch(1, index, tokens, (), 3, weights)


def folded(model, leaves):
    window = Window(len(leaves))
    for microbatch in leaves:
        window.compute(model, microbatch, OBJECTIVE)
    return window.fold.root(), window.losses, window.denominators


def by_tokens(model, leaves):
    """An independent derivation: the mean loss over all counted tokens, as one loss of one batch."""
    losses = []
    for microbatch in leaves:
        tokens = torch.from_numpy(microbatch.tokens_BT1)
        logits = model(tokens[:, :-1], None)
        log_probabilities = logits - torch.logsumexp(logits, dim=-1, keepdim=True)
        chosen = -log_probabilities.gather(-1, tokens[:, 1:, None])[..., 0]
        losses.append(chosen[torch.from_numpy(microbatch.weights_BT) > 0])
    joined = torch.cat(losses)
    mean = joined.sum() / joined.numel()
    return torch.autograd.grad(mean, list(model.parameters())), mean.detach()


def distance(ours, theirs):
    largest = max(float(b.abs().max()) for b in theirs)
    return max(float((a - b).abs().max()) for a, b in zip(ours, theirs, strict=True)) / largest


def test_ten_and_a_hundred_tokens_weigh_the_same_each(model):
    leaves = [leaf(0, 10), leaf(1, 100)]
    sums, losses, denominators = folded(model, leaves)
    assert denominators == [10, 100]
    expected, mean = by_tokens(model, leaves)
    assert distance([s / 110 for s in sums], expected) <= 1e-12
    assert float(sum(losses)) / 110 == pytest.approx(float(mean), rel=1e-13)


def test_the_mean_of_means_is_something_else(model):
    leaves = [leaf(0, 10), leaf(1, 100)]
    expected, mean = by_tokens(model, leaves)
    means = [gradients(model, microbatch, OBJECTIVE) for microbatch in leaves]
    wrong = [(a / 10 + b / 100) / 2 for a, b in zip(means[0].sums, means[1].sums, strict=True)]
    assert distance(wrong, expected) > 1e-2
    wrong_loss = (means[0].loss_sum / 10 + means[1].loss_sum / 100) / 2
    assert abs(float(wrong_loss - mean)) > 1e-6


@pytest.mark.parametrize("num_leaves", [1, 2, 3, 5, 8])
def test_backward_onto_a_sibling_makes_the_additions_of_the_fold(experiment, num_leaves):
    """In fp32, bit for bit: leaves computed apart and folded are the plain twin."""
    model = build(experiment.model, experiment.numerics, experiment.seed)
    leaves = [leaf(index, 30 + index) for index in range(num_leaves)]
    fold, losses = Fold(num_leaves), []
    for index in reversed(range(num_leaves)):
        found = gradients(model, leaves[index], OBJECTIVE)
        fold.push((0, index), found.sums)
        losses.insert(0, found.loss_sum)
    sums, found_losses, _ = folded(model, leaves)
    assert all(torch.equal(a, b) for a, b in zip(sums, fold.root(), strict=True))
    assert found_losses == losses
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_parameter_that_a_leaf_does_not_use_keeps_its_siblings_gradient():
    """Leaves 1 and 2 of four use the second parameter; the third is used nowhere."""

    class Choosing(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.sometimes, self.never = (
                torch.nn.Parameter(torch.ones(shape)) for shape in ((256, 256), (256,), (3,))
            )

        def forward(self, tokens, streams):
            logits = torch.nn.functional.embedding(tokens, self.table)
            return logits * self.sometimes if streams.microbatch in (1, 2) else logits

    model = Choosing()
    leaves = [leaf(index, 5, length=8) for index in range(4)]
    fold = Fold(4)
    for index, microbatch in enumerate(leaves):
        fold.push((0, index), gradients(model, microbatch, OBJECTIVE).sums)
    sums, _, _ = folded(model, leaves)
    expected = fold.root()
    assert expected[2] is sums[2] is None
    assert all(torch.equal(a, b) for a, b in zip(sums[:2], expected[:2], strict=True))
    assert bool(sums[1].any())


def test_one_batch_cut_into_leaves_is_the_batch(model, experiment):
    """Without masks too: the leaves of five sequences against all of them in one forward pass."""
    tokens = np.random.default_rng(0).integers(0, 256, (5, 17))
    leaves = [Microbatch(1, i, tokens[i : i + 1], (), 3) for i in range(5)]
    sums, _, denominators = folded(model, leaves)
    assert denominators == [16] * 5
    whole = torch.from_numpy(tokens)
    loss = F.cross_entropy(model(whole[:, :-1], None).flatten(0, 1), whole[:, 1:].flatten())
    expected = torch.autograd.grad(loss, list(model.parameters()))
    assert distance([s / 80 for s in sums], expected) <= 1e-12


def test_a_leaf_that_counts_nothing_adds_exactly_nothing(model):
    empty = leaf(1, 0)
    found = gradients(model, empty, OBJECTIVE)
    assert found.denominator == 0
    assert found.loss_sum == 0
    assert all(bool((g == 0).all()) for g in found.sums if g is not None)
    alone, _, _ = folded(model, [leaf(0, 100)])
    beside, _, denominators = folded(model, [leaf(0, 100), empty])
    assert denominators == [100, 0]
    assert all(torch.equal(a, b) for a, b in zip(alone, beside, strict=True))


def test_a_sequence_that_fills_up_the_shape_adds_nothing(model):
    padded = leaf(0, 40, num_sequences=2)
    first = Microbatch(1, 0, padded.tokens_BT1[:1], (), 3, padded.weights_BT[:1])
    with_filler, without = (gradients(model, m, OBJECTIVE) for m in (padded, first))
    assert with_filler.denominator == without.denominator == 40
    assert distance(with_filler.sums, without.sums) <= 1e-13


def test_weights_multiply_the_losses():
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(2, 5, 11, generator=generator, dtype=torch.float64)
    targets = torch.randint(0, 11, (2, 5), generator=generator)
    weights = torch.rand(2, 5, generator=generator, dtype=torch.float64)
    each = -torch.log_softmax(logits, -1).gather(-1, targets[..., None])[..., 0]
    assert float(loss_sum(OBJECTIVE, logits, targets, weights)) == pytest.approx(
        float((each * weights).sum())
    )
    ones = loss_sum(OBJECTIVE, logits, targets, torch.ones(2, 5))
    assert float(ones) == pytest.approx(float(loss_sum(OBJECTIVE, logits, targets, None)), rel=1e-14)
    assert float(loss_sum(OBJECTIVE, logits, targets, None)) == pytest.approx(float(each.sum()), rel=1e-14)


def test_targets_are_the_tokens_that_follow():
    microbatch = Microbatch(1, 0, np.arange(6).reshape(1, 6), (), 3)
    inputs, targets, weights = to_device(microbatch, CPU)
    assert inputs.tolist() == [[0, 1, 2, 3, 4]]
    assert targets.tolist() == [[1, 2, 3, 4, 5]]
    assert weights is None


def test_what_was_computed_before_changes_nothing(folder):
    """Dropout too: leaf 2 after others, again, and alone in a fresh model has the same bits."""
    experiment = small_experiment(folder, dropout=0.3)
    model = build(experiment.model, experiment.numerics, experiment.seed)

    def found(index):
        microbatch = leaf(index, 16, length=16)
        return gradients(model, microbatch, OBJECTIVE)

    first = found(2)
    torch.manual_seed(99)
    others = [found(0), found(1)]
    again = found(2)
    model = build(experiment.model, experiment.numerics, experiment.seed)
    fresh = found(2)
    for other in (again, fresh):
        assert all(torch.equal(a, b) for a, b in zip(first.sums, other.sums, strict=True))
    assert not torch.equal(first.sums[0], others[0].sums[0])
    tokens = leaf(2, 16, length=16).tokens_BT1
    masks = [Microbatch(*key, tokens, (), seed) for key, seed in (((2, 2), 3), ((1, 1), 3), ((1, 2), 4))]
    assert torch.equal(first.sums[0], gradients(model, Microbatch(1, 2, tokens, (), 3), OBJECTIVE).sums[0])
    for other in masks:  # another step, leaf or seed
        assert not torch.equal(first.sums[0], gradients(model, other, OBJECTIVE).sums[0])
