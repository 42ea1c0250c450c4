"""Causal self-attention with rotary positions and grouped queries.

Nouns: `Projection` (a matrix without bias), `Rotary` (the tables of rotary positions), `KVCache`
(keys and values of the tokens already read, for generation) and `Attention`.

Shapes: B batch, T new tokens, S all tokens so far, D hidden size, H query heads, K key/value
heads (H a multiple of K; query head h reads key/value head h // (H/K)), E head dim.

Dtypes are written here: projections run in the dtype of their input, rotation and softmax in
fp32. Dropout of probabilities exists on the written-out path only, because a fused kernel draws
from a global generator; asking for both is refused. Gathers by `x[idx]` do not occur.
"""

from functools import lru_cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elinvar.errors import InvalidInput
from elinvar.numerics.streams import Streams, dropout
from elinvar.spec.model import Llama
from elinvar.spec.numerics import Numerics


class Projection(nn.Module):
    """y = x @ weightᵀ in the dtype of x; `weight` is (outputs, inputs), an fp32 leaf cast at use."""

    def __init__(self, outputs: int, inputs: int, device: torch.device | str) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs, device=device))

    def forward(self, x: Tensor) -> Tensor:
        """(…, inputs) -> (…, outputs)."""
        return F.linear(x, self.weight.to(x.dtype))


class Rotary(NamedTuple):
    """cos and signed sin of the angles of positions, each (T, 1, E): see `rotate`."""

    cos: Tensor
    sin: Tensor

    def slice(self, start: int, stop: int) -> "Rotary":
        """The tables of positions start … stop-1."""
        return Rotary(self.cos[start:stop], self.sin[start:stop])


@lru_cache(maxsize=16)
def rotary(length: int, head_dim: int, theta: float, dtype: torch.dtype, device: torch.device) -> Rotary:
    """Tables for positions 0 … length-1 (Su et al. 2021, arXiv 2104.09864), constants and no state.

    Angles are position · theta^(-2i/E) in float64, made on the CPU, so that a table is the same
    on every device; then rounded to `dtype`. Halves are paired (i, i + E/2), as Llama's weights expect.
    """
    # A table made while serving must stay usable in training: never an inference tensor.
    with torch.inference_mode(False), torch.no_grad():
        positions = torch.arange(length, dtype=torch.float64, device="cpu")
        frequencies = theta ** (torch.arange(0, head_dim, 2, dtype=torch.float64, device="cpu") / -head_dim)
        angles = torch.outer(positions, frequencies)
        cos, sin = angles.cos(), angles.sin()
        tables = torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)
        return Rotary(*(table[:, None].to(device=device, dtype=dtype) for table in tables))


def rotate(x_BTHE: Tensor, positions: Rotary) -> Tensor:
    """Turn the pairs (i, i + E/2) of each head by the angle of its position; same shape and dtype.

    (a, b) becomes (a cos - b sin, b cos + a sin): a half roll brings b beside a, and the sign is in the table.
    """
    rolled = x_BTHE.roll(x_BTHE.shape[-1] // 2, -1)
    return (x_BTHE * positions.cos + rolled * positions.sin).to(x_BTHE.dtype)


class KVCache:
    """Keys and values of the first `length` tokens, in every layer, with room for `capacity` tokens.

    Made by `Transformer.new_cache`. A forward pass with a cache appends its tokens and reads all of them.
    """

    def __init__(
        self, model: Llama, batch: int, capacity: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        shape = (model.num_layers, batch, model.num_kv_heads, capacity, model.head_dim)
        self._keys = torch.zeros(shape, dtype=dtype, device=device)
        self._values = torch.zeros(shape, dtype=dtype, device=device)
        self.capacity = capacity
        self.length = 0

    def append(self, layer: int, k_BKTE: Tensor, v_BKTE: Tensor) -> tuple[Tensor, Tensor]:
        """Store one layer's new keys and values behind `length`; returns all of them, (B, K, S, E)."""
        stop = self.length + k_BKTE.shape[2]
        self._keys[layer, :, :, self.length : stop] = k_BKTE
        self._values[layer, :, :, self.length : stop] = v_BKTE
        return self._keys[layer, :, :, :stop], self._values[layer, :, :, :stop]

    def advance(self, num_tokens: int) -> None:
        """Count the tokens that every layer has appended."""
        self.length += num_tokens


class Attention(nn.Module):
    """Layer `layer`'s attention: q, k, v, rotate, softmax over the past, o."""

    def __init__(self, model: Llama, numerics: Numerics, layer: int, device: torch.device | str) -> None:
        super().__init__()
        if model.dropout > 0.0 and numerics.attention != "explicit":
            raise InvalidInput(
                f'model.dropout = {model.dropout} needs numerics.attention = "explicit", got '
                f'"{numerics.attention}": the fused kernel draws its masks from a global generator'
            )
        self.head_dim, self.dropout, self.layer = model.head_dim, model.dropout, layer
        self.fused = numerics.attention == "sdpa"
        queries, keys = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
        self.q = Projection(queries, model.hidden_size, device)
        self.k = Projection(keys, model.hidden_size, device)
        self.v = Projection(keys, model.hidden_size, device)
        self.o = Projection(model.hidden_size, queries, device)

    def forward(
        self, x_BTD: Tensor, positions: Rotary, streams: Streams | None, cache: KVCache | None
    ) -> Tensor:
        """(B, T, D) -> (B, T, D), same dtype; `positions` are those of the T new tokens."""
        heads = (*x_BTD.shape[:2], -1, self.head_dim)
        q_BHTE = rotate(self.q(x_BTD).view(heads), positions).transpose(1, 2)
        k_BKSE = rotate(self.k(x_BTD).view(heads), positions).transpose(1, 2)
        v_BKSE = self.v(x_BTD).view(heads).transpose(1, 2)
        if cache is not None:
            k_BKSE, v_BKSE = cache.append(self.layer, k_BKSE, v_BKSE)
        if self.fused:
            mixed_BHTE = attend_fused(q_BHTE, k_BKSE, v_BKSE)
        elif streams is None:
            mixed_BHTE = attend_explicit(q_BHTE, k_BKSE, v_BKSE)
        else:
            key = streams.key("dropout/probabilities", self.layer)
            mixed_BHTE = attend_explicit(q_BHTE, k_BKSE, v_BKSE, self.dropout, key)
        out_BTD: Tensor = self.o(mixed_BHTE.transpose(1, 2).flatten(2))
        return out_BTD


def attend_fused(q_BHTE: Tensor, k_BKSE: Tensor, v_BKSE: Tensor) -> Tensor:
    """Causal attention by torch's fused kernel; the T queries are the last of the S positions."""
    num_new, num_all = q_BHTE.shape[2], k_BKSE.shape[2]
    grouped = q_BHTE.shape[1] != k_BKSE.shape[1]
    # is_causal aligns the mask to the upper left, so it is right only when all tokens are new;
    # a single new token sees everything and needs no mask.
    mask = None if num_new in (1, num_all) else ~_future(num_new, num_all, q_BHTE.device)
    return F.scaled_dot_product_attention(
        q_BHTE, k_BKSE, v_BKSE, attn_mask=mask, is_causal=num_new == num_all, enable_gqa=grouped
    )


def attend_explicit(
    q_BHTE: Tensor, k_BKSE: Tensor, v_BKSE: Tensor, drop: float = 0.0, key: int = 0
) -> Tensor:
    """Causal attention written out: scores, softmax in fp32, dropout of probabilities, mix.

    The T queries are the last of the S positions. The mask of dropout has shape (B, H, T, S) in the stream of `key`.
    """
    batch, num_heads, num_new, head_dim = q_BHTE.shape
    num_kv_heads, num_all = k_BKSE.shape[1:3]
    grouped = (batch, num_kv_heads, num_heads // num_kv_heads * num_new)
    scores = q_BHTE.reshape(*grouped, head_dim) @ k_BKSE.transpose(2, 3)
    wide = torch.promote_types(scores.dtype, torch.float32)
    scores_BHTS = scores.view(batch, num_heads, num_new, num_all).to(wide) * head_dim**-0.5
    scores_BHTS = scores_BHTS.masked_fill(_future(num_new, num_all, scores.device), -torch.inf)
    probabilities_BHTS = dropout(scores_BHTS.softmax(-1), drop, key)
    mixed = probabilities_BHTS.to(v_BKSE.dtype).view(*grouped, num_all) @ v_BKSE
    return mixed.view(batch, num_heads, num_new, head_dim)


def _future(num_new: int, num_all: int, device: torch.device) -> Tensor:
    """Where, as bool (T, S), a position of all lies after one of the new ones."""
    return torch.ones(num_new, num_all, dtype=torch.bool, device=device).triu(num_all - num_new + 1)
