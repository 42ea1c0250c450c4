"""Text from a model, one token at a time, with keys and values kept.

Nouns: `generate`, an iterator of token ids, and `choose`, which turns logits and one uniform
number into a token. The token at a position is drawn with uniform number `position` of the stream
of the seed, so it depends on the seed, the position and the logits, never on how many tokens
were asked for. A context longer than the model was trained on is allowed: rotary positions
exist for any length, though nothing was learned there. Nothing slides, nothing is truncated.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from elinvar.errors import InvalidInput, RunFailed
from elinvar.model.attention import KVCache
from elinvar.model.transformer import Transformer
from elinvar.numerics.streams import key, uniform


def generate(
    model: Transformer,
    prompt: Sequence[int],
    num_tokens: int,
    *,
    temperature: float,
    top_k: int,
    top_p: float,
    seed: int,
    num_ids: int | None = None,
) -> Iterator[int]:
    """`num_tokens` token ids that continue `prompt`, as they are drawn.

    `temperature` divides the logits; 0 takes the most likely token (of equals the lowest id).
    `top_k` keeps the k most likely tokens (0: all). `top_p` in (0, 1] keeps the smallest set
    of most likely tokens that holds that much probability (nucleus sampling, Holtzman et al.
    2020, arXiv 1904.09751). The three act in this order; the draw is in float64. Of a vocabulary
    larger than the tokenizer's, `num_ids` keeps the ids that mean something: 0 to num_ids - 1.

    Raises InvalidInput at the call for an argument out of its range, an empty prompt, or a
    token outside the vocabulary; RunFailed while drawing where logits are not finite.
    """
    _check_sampling(temperature, top_k, top_p)
    if num_tokens < 0:
        raise InvalidInput(f"num_tokens must be 0 or more, got {num_tokens}")
    if not prompt:
        raise InvalidInput("the prompt has no tokens; give at least one, such as the id that ends a document")
    for token in prompt:
        if not 0 <= token < model.model.vocab_size:
            raise InvalidInput(
                f"the prompt has token {token}, but the model knows 0 to {model.model.vocab_size - 1}"
            )
    if num_ids is not None and not 1 <= num_ids <= model.model.vocab_size:
        raise InvalidInput(
            f"num_ids must be 1 to {model.model.vocab_size}, the model's vocabulary, got {num_ids}"
        )
    pick = partial(choose, temperature=temperature, top_k=top_k, top_p=top_p)
    return _continue(model, list(prompt), num_tokens, num_ids, key(seed, "generate"), pick)


def choose(logits_V: Tensor, draw: float, *, temperature: float, top_k: int, top_p: float) -> int:
    """The token that the uniform number `draw` in [0, 1) picks from logits (V,).

    Tokens are laid out from the most to the least likely (of equals the lowest id first) and
    `draw` points into their cumulative probability.
    """
    if not bool(logits_V.isfinite().all()):
        raise RunFailed(
            "the model's logits are not finite; its parameters are damaged or its training diverged"
        )
    ordered, tokens = logits_V.cpu().double().sort(descending=True, stable=True)
    if temperature == 0.0:
        return int(tokens[0])
    # The largest is subtracted first: it cancels in the softmax, and a tiny temperature cannot overflow.
    scaled = (ordered - ordered[0]) / temperature
    if top_k > 0:
        scaled = scaled[:top_k]
    cumulative = scaled.softmax(0).cumsum(0)
    # A token belongs to the nucleus if those before it do not reach top_p yet.
    num_kept = 1 + int((cumulative[:-1] < top_p).sum()) if top_p < 1.0 else cumulative.numel()
    cumulative = cumulative[:num_kept]
    place = int(torch.searchsorted(cumulative, draw * cumulative[-1], right=True))
    # Only rounding can point past the last: draw is below 1.
    return int(tokens[min(place, num_kept - 1)])


def _continue(
    model: Transformer,
    tokens: list[int],
    num_tokens: int,
    num_ids: int | None,
    stream: int,
    pick: Callable[[Tensor, float], int],
) -> Iterator[int]:
    cache = model.new_cache(1, len(tokens) + num_tokens)
    unread = tokens
    for position in range(len(tokens), len(tokens) + num_tokens):
        logits_V = _read(model, unread, cache)[:num_ids]
        token = pick(logits_V, float(uniform(stream, position, 1)))
        yield token
        unread = [token]


# Around one call, never around a yield: the mode must not leak into the caller's code.
@torch.inference_mode()
def _read(model: Transformer, tokens: list[int], cache: KVCache) -> Tensor:
    """Logits (V,) after `tokens`, which follow those in the cache."""
    logits_BTV: Tensor = model(torch.tensor([tokens], device=model.embedding.weight.device), None, cache)
    return logits_BTV[0, -1]


def _check_sampling(temperature: float, top_k: int, top_p: float) -> None:
    if not (math.isfinite(temperature) and temperature >= 0.0):
        raise InvalidInput(
            f"temperature must be a finite number, 0 or more (0: always the most likely), got {temperature}"
        )
    if top_k < 0:
        raise InvalidInput(f"top_k must be 0 (all tokens) or more, got {top_k}")
    if not 0.0 < top_p <= 1.0:
        raise InvalidInput(f"top_p must be above 0 and at most 1 (1: all tokens), got {top_p}")
