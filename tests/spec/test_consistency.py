import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elinvar.errors import InvalidInput
from elinvar.spec.read import read, resolve, with_overrides


def refused(*overrides):
    with pytest.raises(InvalidInput) as caught:
        read("tiny", overrides)
    return str(caught.value)


def numbers_after(text, word):
    """The values that an error offers for a field."""
    return [int(number) for number in re.findall(r"\d+", text.split(word, 1)[1].split("\n")[0])]


@given(st.integers(1, 200), st.integers(1, 24))
def test_the_sizes_offered_for_heads_work(hidden, heads):
    overrides = [f"hidden_size={hidden}", f"num_heads={heads}", "num_kv_heads=1"]
    if hidden % heads == 0 and hidden // heads % 2 == 0:
        assert read("tiny", overrides).experiment.model.head_dim == hidden // heads
        return
    text = refused(*overrides)
    assert "at override hidden_size" in text
    sizes = numbers_after(text, f"with num_heads = {heads}: hidden_size")
    assert sizes
    for size in sizes:
        read("tiny", [f"hidden_size={size}", *overrides[1:]])
        assert abs(size - hidden) <= 2 * heads
    if hidden % 2 == 0:
        for count in numbers_after(text, f"with hidden_size = {hidden}: num_heads"):
            read("tiny", [overrides[0], f"num_heads={count}", overrides[2]])


@given(st.integers(1, 12), st.integers(1, 30))
def test_the_numbers_offered_for_kv_heads_work(heads, kv_heads):
    overrides = [f"hidden_size={heads * 8}", f"num_heads={heads}", f"num_kv_heads={kv_heads}"]
    if heads % kv_heads == 0:
        read("tiny", overrides)
        return
    for count in numbers_after(refused(*overrides), "the nearest that do:"):
        read("tiny", [*overrides[:2], f"num_kv_heads={count}"])


@pytest.mark.parametrize(
    "overrides, words",
    [
        (("hidden_size=130",), ["130 does not divide into 4 heads", "hidden_size 128 or 136"]),
        (("hidden_size=132",), ["odd width 33", "hidden_size 128 or 136"]),
        (
            ("model.vocab_size=1000",),
            ["does not cover the 1024 tokens", "tokenizer.vocab_size = 1000 or less"],
        ),
        (
            ("model.vocab_size=256", "tokenizer.kind=bytes"),
            ["does not cover the 257 tokens", "= 257 or more"],
        ),
        (("model.vocab_size=200",), ["experiment.model.vocab_size = 1024 or more"]),
        (("dropout=0.1",), ['attention = "sdpa"', 'experiment.numerics.attention = "explicit"']),
        (("warmup_steps=301",), ["longer than decay_steps = 300", "which is length.steps where absent"]),
        (("warmup_steps=31", "decay_steps=30"), ["decay_steps 31 or more"]),
        (("experiment.model.num_layers=1_000_000",), ["num_layers is too large"]),
        (("hidden_size=4_000_000_000", "num_heads=4"), ["hidden_size is too large"]),
        (("microbatches=2_000_000",), ["microbatches is too large"]),
        (("tokens_per_sequence=1_000_000_000_000",), ["tokens a step"]),
        (("steps=9_000_000_000_000_000_000", "decay_steps=9"), ["steps × sequences a step"]),
        (("ranks=2_000_000",), ["execution.ranks is 2000000", "the most is 1048576"]),
    ],
)
def test_what_contradicts_itself_is_refused_with_its_field(overrides, words):
    text = refused(*overrides)
    for word in words:
        assert word in text


@pytest.mark.parametrize(
    "overrides",
    [
        ("model.vocab_size=257", "tokenizer.kind=bytes"),
        ("model.vocab_size=2000",),
        ("dropout=0.1", "attention=explicit"),
        ("warmup_steps=300",),
        ("schedule.kind=constant", "warmup_steps=300"),
        ("num_kv_heads=4",),
        ("num_kv_heads=1",),
    ],
)
def test_what_stands_on_the_border_is_taken(overrides):
    read("tiny", overrides)


def test_a_switch_to_bytes_leaves_the_size_of_the_bpe_behind():
    reading = read("tiny", ["tokenizer.kind=bytes"])
    assert msgspec.to_builtins(reading.experiment.data.tokenizer) == {"kind": "bytes"}
    assert len(reading.notes) == 1


def test_values_made_in_python_meet_the_same_checks():
    tiny = read("tiny").experiment
    with pytest.raises(InvalidInput, match="does not divide into 4 heads"):
        resolve(
            msgspec.structs.replace(tiny, model=msgspec.structs.replace(tiny.model, hidden_size=130)), "."
        )
    with pytest.raises(InvalidInput, match=r"experiment\.seed cannot be -1"):
        resolve(msgspec.structs.replace(tiny, seed=-1), ".")
    with pytest.raises(InvalidInput, match="the most is"):
        with_overrides(read("tiny").execution, ["ranks=2_000_000"])


@pytest.mark.parametrize(
    "overrides, words",
    [
        (["lr=1e38"], "optimizer.lr is too large for float32: lr = 1e+38"),
        (["lr=1e25", "beta1=0.9999999"], "optimizer.lr is too large for float32: lr / (1 - beta1)"),
        (["lr=1e22", "weight_decay=1e10"], "weight_decay is too large for float32: lr × weight_decay"),
        (["weight_decay=1e39"], "weight_decay is too large for float32: weight_decay"),
        (["optimizer.eps=1e-50"], "eps is too small for float32"),
        (["max_grad_norm=1e39"], "max_grad_norm is too large"),
        (["max_grad_norm=1e-50"], "max_grad_norm is too small"),
        (["init_std=1e39"], "init_std is too large"),
        (["norm_eps=1e-60"], "norm_eps is too small"),
        (["rope_theta=1e300"], "rope_theta is too large"),
    ],
)
def test_numbers_that_float32_cannot_take_are_refused(overrides, words):
    text = refused(*overrides)
    assert words in text
    assert "1e+30" in text or "1e-30" in text


def test_numbers_that_only_diverge_are_allowed():
    read("tiny", ["lr=1e22", "max_grad_norm=0", "init_std=100.0"])
    read("tiny", ["lr=0.0", "weight_decay=0.0"])
