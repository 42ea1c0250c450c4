"""AdamW: the bits of torch's foreach implementation, and of a piece those of the piece of the whole."""

import random
from itertools import pairwise

import pytest
import torch

from elinvar.optimizer.adamw import adamw_update, is_decayed
from elinvar.spec.optimizer import AdamW

SHAPES = ((33, 17), (5,), (64, 3), (1,), (7, 129))


def tensors(seed, scale=1.0, shapes=SHAPES):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(*shape, generator=generator) * scale for shape in shapes]


def gradient(step):
    """From ordinary to very large and very small, some exactly zero."""
    found = tensors(100 + step, 10.0 ** (step % 7 - 3))
    found[2][::5] = 0.0
    return found


@pytest.mark.parametrize("decay", ["matrices", "all"])
@pytest.mark.parametrize(("weight_decay", "beta1"), [(0.0, 0.9), (0.1, 0.9), (0.1, 0.3)])
def test_twenty_steps_have_the_bits_of_torch(decay, weight_decay, beta1):
    spec = AdamW(lr=3e-3, beta1=beta1, beta2=0.95, eps=1e-8, weight_decay=weight_decay, decay=decay)
    ours, theirs = tensors(1), [torch.nn.Parameter(tensor) for tensor in tensors(1)]
    groups = [
        {"params": [p for p in theirs if decay == "all" or p.dim() >= 2], "weight_decay": weight_decay},
        {"params": [p for p in theirs if decay != "all" and p.dim() < 2], "weight_decay": 0.0},
    ]
    reference = torch.optim.AdamW(
        [group for group in groups if group["params"]], lr=1.0, betas=(beta1, 0.95), eps=1e-8, foreach=True
    )
    first, second = ([torch.zeros_like(tensor) for tensor in ours] for _ in range(2))
    for step in range(1, 21):
        lr = spec.lr * (1 + step % 3)
        for group in reference.param_groups:
            group["lr"] = lr
        for parameter, found in zip(theirs, gradient(step), strict=True):
            parameter.grad = found
        reference.step()
        decayed = [is_decayed(spec, shape) for shape in SHAPES]
        adamw_update(ours, gradient(step), first, second, optimizer=spec, lr=lr, step=step, decayed=decayed)
        for mine, parameter, m, v in zip(ours, theirs, first, second, strict=True):
            state = reference.state[parameter]
            assert torch.equal(mine, parameter)
            assert torch.equal(m, state["exp_avg"])
            assert torch.equal(v, state["exp_avg_sq"])


def test_the_update_is_the_formula_of_the_paper():
    spec = AdamW(lr=0.01, weight_decay=0.1)
    value, first, second = 1.5, 0.0, 0.0
    tensor, m, v = (torch.tensor([x]) for x in (1.5, 0.0, 0.0))
    for step, found in enumerate([0.3, -0.7, 0.1], start=1):
        first = 0.9 * first + 0.1 * found
        second = 0.95 * second + 0.05 * found**2
        corrected = first / (1 - 0.9**step), second / (1 - 0.95**step)
        value = value - 0.01 * (corrected[0] / (corrected[1] ** 0.5 + 1e-8) + 0.1 * value)
        adamw_update(
            [tensor], [torch.tensor([found])], [m], [v], optimizer=spec, lr=0.01, step=step, decayed=[True]
        )
        assert tensor.item() == pytest.approx(value, rel=1e-6)


@pytest.mark.parametrize("seed", range(12))
def test_a_piece_of_the_update_is_the_update_of_the_piece(seed):
    """Cut at any element, as vector kernels treat the ends of a tensor in another way."""
    spec = AdamW(lr=3e-3)
    size, generator = 301, random.Random(seed)
    cuts = sorted(generator.sample(range(1, size), 9))
    borders = list(zip([0, *cuts], [*cuts, size], strict=True))

    def run(slices):
        whole = tensors(seed, shapes=[(size,)] * 1)[0]
        # Pieces have storage of their own, so that they begin at other alignments than in the whole.
        pieces = [whole[a:b].clone() for a, b in slices]
        m, v = ([torch.zeros_like(piece) for piece in pieces] for _ in range(2))
        for step in range(1, 9):
            found = tensors(1000 * seed + step, 0.1, [(size,)])[0]
            parts = [found[a:b].clone() for a, b in slices]
            flags = [True] * len(pieces)
            adamw_update(pieces, parts, m, v, optimizer=spec, lr=spec.lr, step=step, decayed=flags)
        return [torch.cat(parts) for parts in (pieces, m, v)]

    for whole, joined in zip(run([(0, size)]), run(borders), strict=True):
        assert torch.equal(whole, joined)


@pytest.mark.parametrize("threads", [1, 2])
def test_long_pieces_and_threads_change_nothing(threads):
    """Longer than what is updated at once, and than what one thread takes."""
    spec, size = AdamW(lr=3e-3), 2 * 2**16 + 13
    whole, found = (tensors(seed, shapes=[(size,)])[0] for seed in (1, 2))
    cuts = [0, 5, 2**16 - 3, 2**16 + 1, 100_001, size]

    def run(slices):
        pieces = [whole[a:b].clone() for a, b in slices]
        m, v = ([torch.zeros_like(piece) for piece in pieces] for _ in range(2))
        parts, flags = [found[a:b].clone() for a, b in slices], [True] * len(slices)
        for step in (1, 2):
            adamw_update(pieces, parts, m, v, optimizer=spec, lr=spec.lr, step=step, decayed=flags)
        return [torch.cat(tensors) for tensors in (pieces, m, v)]

    reference = run([(0, size)])
    number = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        joined = run(list(pairwise(cuts)))
    finally:
        torch.set_num_threads(number)
    assert all(torch.equal(a, b) for a, b in zip(joined, reference, strict=True))


def test_views_of_the_whole_are_updated_in_place():
    spec = AdamW(lr=3e-3)
    (whole,), (found,) = tensors(3, shapes=[(50,)]), tensors(4, shapes=[(50,)])
    reference, moments = whole.clone(), [torch.zeros(50) for _ in range(4)]
    adamw_update(
        [reference], [found], moments[:1], moments[1:2], optimizer=spec, lr=0.1, step=1, decayed=[True]
    )
    views = [whole[:13], whole[13:]]
    adamw_update(
        views,
        [found[:13], found[13:]],
        [moments[2][:13], moments[2][13:]],
        [moments[3][:13], moments[3][13:]],
        optimizer=spec,
        lr=0.1,
        step=1,
        decayed=[True, True],
    )
    assert torch.equal(whole, reference)
    assert torch.equal(moments[2], moments[0])
    assert torch.equal(moments[3], moments[1])


def test_a_rank_without_pieces_has_nothing_to_do():
    adamw_update([], [], [], [], optimizer=AdamW(lr=1.0), lr=1.0, step=1, decayed=[])


@pytest.mark.parametrize(
    ("decay", "shape", "expected"),
    [
        ("matrices", (3, 4), True),
        ("matrices", (3, 4, 5), True),
        ("matrices", (4,), False),
        ("matrices", (), False),
        ("all", (4,), True),
    ],
)
def test_decay_goes_by_the_logical_shape(decay, shape, expected):
    assert is_decayed(AdamW(lr=1.0, decay=decay), shape) is expected
