"""Sampling: greedy limits, the cache, keyed draws, and that draws follow the probabilities."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from elinvar.errors import InvalidInput, RunFailed
from elinvar.model.generate import choose, generate
from elinvar.model.transformer import build
from elinvar.numerics.streams import key, uniform
from elinvar.spec.model import Llama
from elinvar.spec.numerics import Numerics

MODEL = Llama(vocab_size=29, hidden_size=16, num_layers=2, num_heads=4, num_kv_heads=2, intermediate_size=24)
PROMPT = [3, 1, 4, 1, 5]


@pytest.fixture(scope="module")
def transformer():
    built = build(MODEL, Numerics(), 0)
    with torch.no_grad():
        for name, parameter in built.named_parameters():
            if not name.endswith("norm.weight"):
                parameter.mul_(10)
    return built


def sample(transformer, num_tokens=20, prompt=PROMPT, **changes):
    arguments = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "seed": 0} | changes
    return list(generate(transformer, prompt, num_tokens, **arguments))


def twin(transformer, num_tokens, temperature, top_k, top_p, seed):
    """Without a cache, and with the sets cut token by token: slow and obvious."""
    tokens = list(PROMPT)
    for _ in range(num_tokens):
        with torch.inference_mode():
            logits = transformer(torch.tensor([tokens]))[0, -1].double().tolist()
        order = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
        kept = order[: top_k or None]
        weights = [math.exp((logits[token] - logits[order[0]]) / temperature) for token in kept]
        mass, nucleus = 0.0, []
        for token, weight in zip(kept, weights, strict=True):
            if mass >= top_p:
                break
            nucleus.append((token, weight))
            mass += weight / sum(weights)
        point = uniform(key(seed, "generate"), len(tokens), 1).item() * sum(weight for _, weight in nucleus)
        edges = itertools.accumulate(weight for _, weight in nucleus)
        tokens.append(next(token for (token, _), edge in zip(nucleus, edges, strict=True) if point < edge))
    return tokens[len(PROMPT) :]


@pytest.mark.parametrize(
    "temperature, top_k, top_p, seed",
    [(1.0, 0, 1.0, 0), (0.7, 5, 1.0, 1), (1.3, 0, 0.8, 2), (0.9, 12, 0.5, 3), (2.0, 100, 0.95, 4)],
)
def test_cached_tokens_equal_those_of_the_twin(transformer, temperature, top_k, top_p, seed):
    got = sample(transformer, 25, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
    assert got == twin(transformer, 25, temperature, top_k, top_p, seed)
    assert len(set(got)) > 3


def test_every_road_to_greedy_is_greedy(transformer):
    tokens = list(PROMPT)
    for _ in range(20):
        with torch.inference_mode():
            tokens.append(int(transformer(torch.tensor([tokens]))[0, -1].argmax()))
    greedy = tokens[len(PROMPT) :]
    assert sample(transformer, temperature=0.0, seed=8) == greedy
    assert sample(transformer, temperature=1e-300, seed=8) == greedy
    assert sample(transformer, top_k=1, seed=8) == greedy
    assert sample(transformer, top_p=1e-9, seed=8) == greedy


def test_the_lowest_id_wins_ties():
    logits = torch.tensor([0.0, 2.0, 1.0, 2.0, 2.0])
    assert choose(logits, 0.99, temperature=0.0, top_k=0, top_p=1.0) == 1
    assert choose(logits, 0.99, temperature=1.0, top_k=1, top_p=1.0) == 1
    assert choose(logits, 0.99, temperature=1.0, top_k=2, top_p=1.0) == 3


def test_a_token_depends_on_seed_and_position_not_on_how_many_were_asked_for(transformer):
    long = sample(transformer, 30, seed=5)
    assert sample(transformer, 10, seed=5) == long[:10]
    assert sample(transformer, 20, prompt=PROMPT + long[:10], seed=5) == long[10:]
    assert sample(transformer, 30, seed=6) != long
    torch.manual_seed(1)
    state = torch.get_rng_state()
    assert sample(transformer, 30, seed=5) == long
    assert torch.equal(torch.get_rng_state(), state)


@given(st.integers(0, 2**32), st.sampled_from([(1.0, 0, 1.0), (0.5, 4, 1.0), (1.5, 0, 0.7), (0.8, 6, 0.9)]))
def test_draws_follow_the_probabilities(seed, arguments):
    temperature, top_k, top_p = arguments
    logits = torch.from_numpy(np.random.default_rng(seed).normal(size=10)).float()
    scaled = logits.double().numpy() / temperature
    order = np.argsort(-scaled)
    probabilities = np.exp(scaled - scaled.max())
    probabilities[order[top_k:] if top_k else []] = 0
    probabilities /= probabilities.sum()
    before = np.concatenate([[0], np.cumsum(probabilities[order])[:-1]])
    probabilities[order[before >= top_p]] = 0
    probabilities /= probabilities.sum()
    # Evenly spread draws must land on each token as often as its probability, to within one draw.
    n = 4000
    draws = [(i + 0.5) / n for i in range(n)]
    counts = np.bincount(
        [choose(logits, draw, temperature=temperature, top_k=top_k, top_p=top_p) for draw in draws[::8]],
        minlength=10,
    )
    assert np.abs(counts - probabilities * n / 8).max() <= 1.01
    assert not counts[probabilities == 0].any()


def test_first_tokens_of_many_seeds_pass_chi_square(transformer):
    with torch.inference_mode():
        probabilities = transformer(torch.tensor([PROMPT]))[0, -1].double().softmax(0).numpy()
    n = 800
    counts = np.bincount([sample(transformer, 1, seed=seed)[0] for seed in range(n)], minlength=29)
    common = probabilities * n >= 5
    observed = np.append(counts[common], counts[~common].sum())
    expected = np.append(probabilities[common], probabilities[~common].sum()) * n
    cells = expected > 0
    chi_square = ((observed - expected) ** 2 / np.maximum(expected, 1e-9))[cells].sum()
    freedom = cells.sum() - 1
    assert freedom >= 5
    assert chi_square < freedom + 4 * math.sqrt(2 * freedom)


def test_ids_without_a_meaning_are_never_drawn(transformer):
    free = sample(transformer, 60, temperature=5.0)
    cut = sample(transformer, 60, temperature=5.0, num_ids=6)
    assert max(free) > 6
    assert set(cut) == set(range(6))


def test_tokens_come_one_by_one_and_leave_no_mode_behind(transformer):
    tokens = generate(transformer, PROMPT, 10**6, temperature=1.0, top_k=0, top_p=1.0, seed=0)
    first = list(itertools.islice(tokens, 3))
    assert not torch.is_inference_mode_enabled()
    assert torch.is_grad_enabled()
    assert first == sample(transformer, 3)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"temperature": -0.5}, "temperature must be a finite number, 0 or more .* got -0.5"),
        ({"temperature": math.nan}, "temperature must be a finite number"),
        ({"temperature": math.inf}, "temperature must be a finite number"),
        ({"top_k": -1}, "top_k must be 0 .* or more, got -1"),
        ({"top_p": 0.0}, "top_p must be above 0 and at most 1 .* got 0.0"),
        ({"top_p": 1.5}, "top_p must be above 0"),
        ({"top_p": math.nan}, "top_p must be above 0"),
        ({"num_tokens": -2}, "num_tokens must be 0 or more, got -2"),
        ({"prompt": []}, "the prompt has no tokens"),
        ({"prompt": [3, 29]}, "token 29, but the model knows 0 to 28"),
        ({"prompt": [-1]}, "token -1, but"),
        ({"num_ids": 30}, "num_ids must be 1 to 29"),
        ({"num_ids": 0}, "num_ids must be 1 to 29"),
    ],
)
def test_wrong_arguments_are_refused_at_the_call(transformer, changes, message):
    arguments = {"prompt": PROMPT, "num_tokens": 3, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "seed": 0}
    with pytest.raises(InvalidInput, match=message):
        generate(transformer, **(arguments | changes))


def test_logits_that_are_not_finite_are_an_error():
    with pytest.raises(RunFailed, match="not finite"):
        choose(torch.tensor([0.0, math.nan]), 0.5, temperature=1.0, top_k=0, top_p=1.0)
