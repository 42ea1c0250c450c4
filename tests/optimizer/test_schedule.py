"""The learning rate by step: closed forms at the points that matter."""

import pytest

from elinvar.optimizer.schedule import lr_at
from elinvar.spec.schedule import Constant, Cosine

LR = 0.004
COSINE = Cosine(warmup_steps=10, decay_steps=110, final_fraction=0.1)


@pytest.mark.parametrize("schedule", [Constant(warmup_steps=10), COSINE])
def test_warm_up_grows_by_equal_parts_and_reaches_lr(schedule):
    found = [lr_at(schedule, LR, step) for step in range(1, 11)]
    assert found == pytest.approx([LR * step / 10 for step in range(1, 11)], rel=1e-15)
    assert found[-1] == LR
    assert found[0] > 0


def test_constant_stays():
    assert {lr_at(Constant(), LR, step) for step in (1, 2, 1000, 10**9)} == {LR}
    assert {lr_at(Constant(warmup_steps=3), LR, step) for step in (3, 4, 10**9)} == {LR}


def test_cosine_has_its_closed_form():
    assert lr_at(COSINE, LR, 60) == pytest.approx((LR + 0.1 * LR) / 2, rel=1e-14)  # the middle
    assert lr_at(COSINE, LR, 35) == pytest.approx(0.1 * LR + 0.9 * LR * (2 + 2**0.5) / 4, rel=1e-14)
    assert lr_at(COSINE, LR, 110) == pytest.approx(0.1 * LR, rel=1e-14)
    falling = [lr_at(COSINE, LR, step) for step in range(10, 111)]
    assert falling == sorted(falling, reverse=True)


def test_cosine_is_constant_after_its_end():
    assert {lr_at(COSINE, LR, step) for step in (110, 111, 10**6)} == {lr_at(COSINE, LR, 110)}


def test_cosine_to_zero_and_without_warm_up():
    schedule = Cosine(warmup_steps=0, decay_steps=4, final_fraction=0.0)
    assert lr_at(schedule, 1.0, 2) == pytest.approx(0.5)
    assert lr_at(schedule, 1.0, 4) == 0.0
    assert lr_at(schedule, 1.0, 1) < 1.0


@pytest.mark.parametrize("decay_steps", [3, 10])
def test_a_warm_up_that_is_as_long_as_the_decay_ends_at_the_floor(decay_steps):
    schedule = Cosine(warmup_steps=10, decay_steps=decay_steps, final_fraction=0.1)
    assert lr_at(schedule, LR, 10) == LR
    assert lr_at(schedule, LR, 11) == pytest.approx(0.1 * LR)


@pytest.mark.parametrize("step", [0, -1])
def test_steps_are_counted_from_one(step):
    with pytest.raises(ValueError, match="from 1"):
        lr_at(Constant(), LR, step)
