"""The decoder against a float64 re-derivation in numpy, and the laws that training rests on."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from elinvar.errors import InvalidInput
from elinvar.model.attention import attend_explicit, attend_fused, rotary
from elinvar.model.transformer import Transformer, build, initial
from elinvar.numerics.streams import Streams, keep_mask, key, normal
from elinvar.spec.model import Llama, parameter_shapes
from elinvar.spec.numerics import Numerics

TIED = Llama(vocab_size=37, hidden_size=24, num_layers=3, num_heads=6, num_kv_heads=2, intermediate_size=40)
UNTIED = Llama(
    vocab_size=37,
    hidden_size=24,
    num_layers=2,
    num_heads=3,
    num_kv_heads=3,
    intermediate_size=40,
    tie_embeddings=False,
    rope_theta=500.0,
    norm_eps=1e-3,
)
DROPPING = Llama(
    vocab_size=37,
    hidden_size=24,
    num_layers=2,
    num_heads=6,
    num_kv_heads=2,
    intermediate_size=40,
    dropout=0.3,
)
EXPLICIT = Numerics(attention="explicit")


@pytest.fixture(autouse=True)
def _deterministic():
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def tokens_of(seed, batch=2, length=9, vocab_size=37):
    return torch.from_numpy(np.random.default_rng(seed).integers(0, vocab_size, (batch, length)))


FP32 = Numerics()


def lively(model, numerics=FP32, seed=3, gain=8.0):
    """A model whose weights are large enough that every part of it moves the logits, norms included."""
    transformer = build(model, numerics, seed)
    with torch.no_grad():
        for name, parameter in transformer.named_parameters():
            if name.endswith("norm.weight"):
                parameter.add_(normal(key(name), 0, parameter.numel()).float(), alpha=0.3)
            else:
                parameter.mul_(gain)
    return transformer


def numpy_logits(model, state, tokens_BT, streams=None):
    """The forward pass from its formulas, in float64, head by head and position by position."""
    w = {name: value.detach().double().numpy() for name, value in state.items()}
    width, group = model.head_dim, model.num_heads // model.num_kv_heads

    def norm(x, weight):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + model.norm_eps) * weight

    def drop(x, use, layer):
        if streams is None or model.dropout == 0:
            return x
        mask = keep_mask(streams.key(use, layer), x.shape, model.dropout).numpy()
        return x * mask / (1 - model.dropout)

    def turn(x, position):
        """Multiply the complex numbers (x_i, x_(i + width/2)) by exp(i · position · theta^(-2i/width))."""
        half = width // 2
        angle = position * model.rope_theta ** (-2 * np.arange(half) / width)
        z = (x[:half] + 1j * x[half:]) * np.exp(1j * angle)
        return np.concatenate([z.real, z.imag])

    x = drop(w["embedding.weight"][tokens_BT.numpy()], "dropout/embedding", 0)
    batch, length = tokens_BT.shape
    for n in range(model.num_layers):
        layer = {name.split(".", 2)[2]: value for name, value in w.items() if name.startswith(f"layers.{n}.")}
        y = norm(x, layer["attention_norm.weight"])
        q, k, v = (y @ layer[f"attention.{name}.weight"].T for name in "qkv")
        scores = np.full((batch, model.num_heads, length, length), -np.inf)
        for b, h, t in np.ndindex(batch, model.num_heads, length):
            query = turn(q[b, t, h * width : (h + 1) * width], t)
            for s in range(t + 1):
                start = h // group * width
                scores[b, h, t, s] = query @ turn(k[b, s, start : start + width], s) / math.sqrt(width)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights = drop(weights / weights.sum(-1, keepdims=True), "dropout/probabilities", n)
        mixed = np.zeros_like(q)
        for b, h in np.ndindex(batch, model.num_heads):
            start = h // group * width
            mixed[b, :, h * width : (h + 1) * width] = weights[b, h] @ v[b, :, start : start + width]
        x = x + drop(mixed @ layer["attention.o.weight"].T, "dropout/attention", n)
        y = norm(x, layer["feed_forward_norm.weight"])
        gate = y @ layer["feed_forward.gate.weight"].T
        inner = gate / (1 + np.exp(-gate)) * (y @ layer["feed_forward.up.weight"].T)
        x = x + drop(inner @ layer["feed_forward.down.weight"].T, "dropout/feed_forward", n)
    return norm(x, w["norm.weight"]) @ w.get("output.weight", w["embedding.weight"]).T


@pytest.mark.parametrize("numerics", [Numerics(), EXPLICIT], ids=["sdpa", "explicit"])
@pytest.mark.parametrize("model", [TIED, UNTIED], ids=["tied", "untied"])
def test_logits_equal_the_formulas_in_float64(model, numerics):
    transformer = lively(model, numerics)
    tokens_BT = tokens_of(0)
    expected = numpy_logits(model, transformer.state_dict(), tokens_BT)
    logits = transformer(tokens_BT)
    assert logits.dtype == torch.float32
    assert expected.std() > 0.5
    assert np.abs(logits.detach().numpy() - expected).max() < 1e-4 * expected.std()
    wide = transformer.double()(tokens_BT)
    assert np.abs(wide.detach().numpy() - expected).max() < 1e-12 * max(1, expected.std())


def test_dropout_equals_the_formulas_with_the_keyed_masks():
    transformer = lively(DROPPING, EXPLICIT).double()
    tokens_BT, streams = tokens_of(1), Streams(5, 7, 2)
    expected = numpy_logits(DROPPING, transformer.state_dict(), tokens_BT, streams)
    logits = transformer(tokens_BT, streams).detach().numpy()
    assert np.abs(logits - expected).max() < 1e-12 * max(1, expected.std())
    evaluated = transformer(tokens_BT).detach().numpy()
    assert np.abs(evaluated - numpy_logits(DROPPING, transformer.state_dict(), tokens_BT)).max() < 1e-11
    assert np.abs(logits - evaluated).max() > 0.1


def test_each_key_of_a_dropout_mask_matters_and_nothing_else_does():
    transformer = lively(DROPPING, EXPLICIT)
    tokens_BT = tokens_of(1)
    logits = [
        transformer(tokens_BT, Streams(*parts)) for parts in [(0, 1, 0), (1, 1, 0), (0, 2, 0), (0, 1, 1)]
    ]
    assert not any(torch.equal(logits[0], other) for other in logits[1:])
    torch.manual_seed(9)
    transformer.eval()
    assert torch.equal(transformer(tokens_BT, Streams(0, 1, 0)), logits[0])


def gradients_of(transformer, tokens_BT, streams):
    transformer.zero_grad(set_to_none=True)
    logits_BTV = transformer(tokens_BT[:, :-1], streams)
    F.cross_entropy(logits_BTV.flatten(0, 1), tokens_BT[:, 1:].flatten(), reduction="sum").backward()
    return {name: parameter.grad.clone() for name, parameter in transformer.named_parameters()}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("model, attention", [(DROPPING, "explicit"), (TIED, "sdpa")])
def test_a_microbatch_has_its_gradient_whatever_ran_before(model, attention, precision):
    numerics = Numerics(attention=attention, precision=precision)
    fresh, used = build(model, numerics, 0), build(model, numerics, 0)
    for index in (3, 1):
        gradients_of(used, tokens_of(10 + index, 3, 12), Streams(0, 1, index))
        with torch.inference_mode():
            used(tokens_of(50, 1, 30))
    torch.manual_seed(77)
    alone = gradients_of(fresh, tokens_of(12), Streams(0, 1, 2))
    after = gradients_of(used, tokens_of(12), Streams(0, 1, 2))
    assert all(torch.equal(alone[name], after[name]) for name in alone)
    assert all(gradient.dtype == torch.float32 for gradient in alone.values())
    assert all(bool(gradient.any()) for gradient in alone.values())


def test_gradients_equal_finite_differences():
    model = Llama(
        vocab_size=11,
        hidden_size=8,
        num_layers=2,
        num_heads=2,
        num_kv_heads=1,
        intermediate_size=12,
        dropout=0.2,
    )
    transformer = lively(model, EXPLICIT).double()
    tokens_BT, streams = tokens_of(4, 2, 6, 11), Streams(1, 2, 3)
    gradients = gradients_of(transformer, tokens_BT, streams)

    def loss():
        logits_BTV = transformer(tokens_BT[:, :-1], streams)
        return F.cross_entropy(logits_BTV.flatten(0, 1), tokens_BT[:, 1:].flatten(), reduction="sum").item()

    step = 1e-5
    with torch.no_grad():
        for name, parameter in transformer.named_parameters():
            values, gradient = parameter.view(-1), gradients[name].view(-1)
            for index in range(0, values.numel(), max(1, values.numel() // 4)):
                kept = values[index].item()
                values[index] = kept + step
                above = loss()
                values[index] = kept - step
                below = loss()
                values[index] = kept
                assert gradient[index].item() == pytest.approx(
                    (above - below) / (2 * step), rel=1e-5, abs=1e-6
                )


@given(
    st.sampled_from([(6, 2), (4, 4), (4, 1)]), st.integers(1, 20), st.integers(1, 20), st.integers(0, 2**32)
)
def test_fused_and_explicit_attention_agree(heads, num_new, num_past, seed):
    num_all = num_new + num_past - 1
    q, k, v = (
        normal(key(seed, which), 0, 2 * count * length * 8).float().view(2, count, length, 8)
        for which, count, length in [
            ("q", heads[0], num_new),
            ("k", heads[1], num_all),
            ("v", heads[1], num_all),
        ]
    )
    torch.testing.assert_close(attend_fused(q, k, v), attend_explicit(q, k, v), rtol=1e-5, atol=1e-5)


def test_bf16_is_close_to_fp32_and_leaves_fp32():
    tokens_BT = tokens_of(0)
    full, half = lively(TIED), lively(TIED, Numerics(precision="bf16"))
    expected, logits = full(tokens_BT), half(tokens_BT)
    assert logits.dtype == torch.float32
    assert 0 < (logits - expected).abs().max() < 0.2 * expected.std()
    assert {parameter.dtype for parameter in half.parameters()} == {torch.float32}


@pytest.mark.parametrize("numerics", [Numerics(), EXPLICIT], ids=["sdpa", "explicit"])
def test_later_tokens_never_change_earlier_logits(numerics):
    transformer = lively(TIED, numerics)
    tokens_BT = tokens_of(2, 3, 12)
    changed = tokens_BT.clone()
    changed[:, 7:] = (changed[:, 7:] + 1) % 37
    before, after = transformer(tokens_BT), transformer(changed)
    assert torch.equal(before[:, :7], after[:, :7])
    assert not torch.equal(before[:, 7], after[:, 7])


@settings(max_examples=10)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=6), st.sampled_from([Numerics(), EXPLICIT]))
def test_reading_in_pieces_equals_reading_at_once(pieces, numerics):
    transformer = lively(TIED, numerics)
    tokens_BT = tokens_of(3, 2, sum(pieces))
    with torch.inference_mode():
        expected = transformer(tokens_BT)
        cache = transformer.new_cache(2, sum(pieces) + 3)
        read = [transformer(part, None, cache) for part in tokens_BT.split(pieces, dim=1)]
    assert cache.length == sum(pieces)
    torch.testing.assert_close(torch.cat(read, 1), expected, rtol=1e-5, atol=1e-5 * expected.std().item())


def test_a_full_cache_refuses_more():
    transformer = build(TIED, Numerics(), 0)
    cache = transformer.new_cache(1, 4)
    with torch.inference_mode():
        transformer(tokens_of(0, 1, 3), None, cache)
        with pytest.raises(InvalidInput, match="a cache of 4 tokens that holds 3 has no room for 2"):
            transformer(tokens_of(0, 1, 2), None, cache)


@pytest.mark.parametrize("model", [TIED, UNTIED], ids=["tied", "untied"])
def test_parameters_are_those_of_the_arithmetic(model):
    transformer = Transformer(model, Numerics())
    shapes = {name: tuple(parameter.shape) for name, parameter in transformer.named_parameters()}
    assert shapes == parameter_shapes(model)
    assert list(shapes) == list(parameter_shapes(model))
    # Tables of positions are constants, not state.
    assert set(transformer.state_dict()) == set(shapes)
    assert ("output.weight" in shapes) is not model.tie_embeddings


def test_initial_weights_depend_on_seed_name_and_index_only():
    torch.manual_seed(5)
    state = torch.get_rng_state()
    first = build(TIED, Numerics(), 1).state_dict()
    assert torch.equal(torch.get_rng_state(), state)
    again = build(TIED, Numerics(precision="bf16"), 1).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    other = build(TIED, Numerics(), 2).state_dict()
    # The same names in another shape of model begin with the same numbers, row after row.
    deeper = build(UNTIED, Numerics(), 1).state_dict()
    assert torch.equal(first["embedding.weight"], deeper["embedding.weight"])
    for name, value in first.items():
        assert torch.equal(value, other[name]) is name.endswith("norm.weight")
        flat = value.view(-1)
        assert torch.equal(initial(TIED, 1, name, 5, 17), flat[5:22])
    matrices = [value for name, value in first.items() if not name.endswith("norm.weight")]
    assert len({tuple(value.view(-1)[:4].tolist()) for value in matrices}) == len(matrices)


def test_initial_spread():
    model = Llama(
        vocab_size=512, hidden_size=64, num_layers=8, num_heads=4, num_kv_heads=2, intermediate_size=256
    )
    for name, value in build(model, Numerics(), 0).state_dict().items():
        if name.endswith("norm.weight"):
            assert bool((value == 1).all())
            continue
        residual = name.endswith(("attention.o.weight", "feed_forward.down.weight"))
        std = 0.02 / math.sqrt(16) if residual else 0.02
        n = value.numel()
        assert abs(value.double().std().item() / std - 1) < 4 / math.sqrt(2 * n)
        assert abs(value.double().mean().item()) < 4 * std / math.sqrt(n)


def test_a_table_made_while_serving_serves_training():
    rotary.cache_clear()
    transformer = build(TIED, Numerics(), 0)
    with torch.inference_mode():
        transformer(tokens_of(0, 2, 8))
    assert gradients_of(transformer, tokens_of(0, 2, 9), None)
    assert rotary.cache_info().currsize == 1


@pytest.mark.parametrize(
    "change, message",
    [
        ({"num_heads": 5, "num_kv_heads": 1}, "hidden_size = 24 must be a multiple of model.num_heads = 5"),
        ({"num_kv_heads": 4}, "num_heads = 6 must be a multiple of model.num_kv_heads = 4"),
        ({"num_heads": 8, "num_kv_heads": 8}, "= 3 must be even"),
        ({"dropout": 0.1}, 'dropout = 0.1 needs numerics.attention = "explicit", got "sdpa"'),
    ],
)
def test_impossible_models_are_refused(change, message):
    fields = {name: getattr(TIED, name) for name in TIED.__struct_fields__} | change
    with pytest.raises(InvalidInput, match=message):
        Transformer(Llama(**fields), Numerics())
