"""The cursor: only ever at a step's border, only in its own data set."""

import pytest

from elinvar.data.cursor import Cursor
from elinvar.errors import InvalidInput, Mismatch
from elinvar.identity import Digest

HERE, THERE = Digest("ab" * 32), Digest("cd" * 32)


def test_the_next_step_follows_from_the_position():
    for step in (1, 2, 17):
        assert Cursor(dataset=HERE, position=(step - 1) * 6).next_step(HERE, 6) == step


def test_a_position_inside_a_step_is_refused():
    with pytest.raises(InvalidInput, match="position 7, inside a step of 6 sequences"):
        Cursor(dataset=HERE, position=7).next_step(HERE, 6)


def test_another_data_set_is_refused_with_both_names():
    with pytest.raises(Mismatch) as caught:
        Cursor(dataset=HERE, position=0).next_step(THERE, 6)
    assert HERE in str(caught.value)
    assert THERE in str(caught.value)
    assert "tokenizers library" in str(caught.value)
