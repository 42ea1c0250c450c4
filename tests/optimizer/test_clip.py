"""Clipping: one factor, torch's, and not a bit moved where nothing is clipped."""

import pytest
import torch

from elinvar.optimizer.clip import clip, clip_factor


def gradients(scale):
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(shape, generator=generator) * scale for shape in ((9, 7), (5,), (2, 3, 4))]


@pytest.mark.parametrize("scale", [1e-3, 0.1, 1.0, 1e4])
@pytest.mark.parametrize("max_norm", [0.5, 1.0, 20.0])
def test_it_clips_as_torch_does(scale, max_norm):
    ours, theirs = gradients(scale), [torch.nn.Parameter(torch.zeros_like(g)) for g in gradients(scale)]
    for parameter, found in zip(theirs, gradients(scale), strict=True):
        parameter.grad = found
    norm = float(torch.nn.utils.clip_grad_norm_(theirs, max_norm))
    clip(ours, clip_factor(norm, max_norm))
    for mine, parameter in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, parameter.grad, rtol=3e-7, atol=0)


def test_below_the_bound_no_bit_moves():
    ours = gradients(1e-3)
    factor = clip_factor(0.05, 1.0)
    assert factor == 1.0
    clip(ours, factor)
    assert all(torch.equal(a, b) for a, b in zip(ours, gradients(1e-3), strict=True))


def test_zero_switches_it_off():
    assert clip_factor(1e30, 0.0) == 1.0


def test_the_norm_after_clipping_is_the_bound():
    assert clip_factor(4.0, 1.0) == 1.0 / (4.0 + 1e-6)
    assert clip_factor(0.0, 1.0) == 1.0
    clip([], 0.5)  # a rank without pieces
