"""The Llama-family decoder (Touvron et al. 2023, arXiv 2302.13971), as one readable module.

Nouns: `Transformer`, its `Layer`s, and `build`, which makes one with its initial weights.

Shapes: B batch, T tokens, D hidden size, F intermediate size, V vocabulary.

A forward pass is a pure function of parameters, tokens and streams: `train()` and `eval()` change
nothing, dropout acts exactly when streams are given. Dtypes are written here, not by autocast:
parameters are fp32 leaves; with `precision = "bf16"` matrices are cast at use, the residual
stream and matrix products are bf16, while norms, rotation, softmax and what leaves the model
(logits: a bf16 product, then fp32) are fp32. Gradients of cast matrices come back in fp32.
It refuses shapes that do not divide; nothing is padded.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elinvar.errors import InvalidInput
from elinvar.model.attention import Attention, KVCache, Projection, Rotary, rotary
from elinvar.numerics.streams import Streams, dropout, key, normal
from elinvar.spec.model import Llama
from elinvar.spec.numerics import Numerics

# Initial values are drawn by so many at once, to bound the float64 buffer; it changes no value.
_DRAW = 2**22


class Embedding(nn.Module):
    """Rows of `weight` (V, D) by token."""

    def __init__(self, num_rows: int, width: int, device: torch.device | str) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_rows, width, device=device))

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """int64 (B, T) -> (B, T, D) in the dtype of the weight."""
        return F.embedding(tokens_BT, self.weight)


class RMSNorm(nn.Module):
    """x / sqrt(mean(x²) + eps) · weight, in fp32, returned in the dtype of x (Zhang & Sennrich 2019)."""

    def __init__(self, width: int, eps: float, device: torch.device | str) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(width, device=device))

    def forward(self, x_BTD: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        wide = x_BTD.to(self.weight.dtype)
        return F.rms_norm(wide, self.weight.shape, self.weight, self.eps).to(x_BTD.dtype)


class FeedForward(nn.Module):
    """SwiGLU: down(silu(gate(x)) · up(x)) (Shazeer 2020, arXiv 2002.05202)."""

    def __init__(self, model: Llama, device: torch.device | str) -> None:
        super().__init__()
        self.gate = Projection(model.intermediate_size, model.hidden_size, device)
        self.up = Projection(model.intermediate_size, model.hidden_size, device)
        self.down = Projection(model.hidden_size, model.intermediate_size, device)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        out_BTD: Tensor = self.down(F.silu(self.gate(x_BTD)) * self.up(x_BTD))
        return out_BTD


class Layer(nn.Module):
    """x + attention(norm(x)), then x + feed_forward(norm(x))."""

    def __init__(self, model: Llama, numerics: Numerics, index: int, device: torch.device | str) -> None:
        super().__init__()
        self.index, self.dropout = index, model.dropout
        self.attention_norm = RMSNorm(model.hidden_size, model.norm_eps, device)
        self.attention = Attention(model, numerics, index, device)
        self.feed_forward_norm = RMSNorm(model.hidden_size, model.norm_eps, device)
        self.feed_forward = FeedForward(model, device)

    def forward(
        self, x_BTD: Tensor, positions: Rotary, streams: Streams | None, cache: KVCache | None
    ) -> Tensor:
        """(B, T, D) -> (B, T, D), same dtype."""
        attended = self.attention(self.attention_norm(x_BTD), positions, streams, cache)
        x_BTD = x_BTD + self._drop(attended, "dropout/attention", streams)
        fed_forward = self.feed_forward(self.feed_forward_norm(x_BTD))
        return x_BTD + self._drop(fed_forward, "dropout/feed_forward", streams)

    def _drop(self, branch_BTD: Tensor, use: str, streams: Streams | None) -> Tensor:
        if streams is None or self.dropout == 0.0:
            return branch_BTD
        return dropout(branch_BTD, self.dropout, streams.key(use, self.index))


class Transformer(nn.Module):
    """A decoder of `model`'s shape computing with `numerics`; weights are uninitialised (see `build`).

    Raises InvalidInput where heads do not divide the hidden size, key/value heads do not divide
    the heads, a head's width is odd, or dropout is asked of the fused attention.
    """

    def __init__(self, model: Llama, numerics: Numerics, device: torch.device | str = "cpu") -> None:
        super().__init__()
        _check_shapes(model)
        self.model = model
        self.precision = numerics.precision
        self.embedding = Embedding(model.vocab_size, model.hidden_size, device)
        self.layers = nn.ModuleList(
            Layer(model, numerics, index, device) for index in range(model.num_layers)
        )
        self.norm = RMSNorm(model.hidden_size, model.norm_eps, device)
        self.output = (
            None if model.tie_embeddings else Projection(model.vocab_size, model.hidden_size, device)
        )

    def forward(
        self, tokens_BT: Tensor, streams: Streams | None = None, cache: KVCache | None = None
    ) -> Tensor:
        """Logits of the next token after each token: int64 (B, T) -> fp32 (B, T, V).

        Without `streams` it is evaluation: no dropout. With a `cache` the tokens follow those
        that it holds, and are appended; raises InvalidInput where it has no room for them.
        """
        start, length = (0, tokens_BT.shape[1]) if cache is None else (cache.length, cache.capacity)
        stop = start + tokens_BT.shape[1]
        if stop > length:
            raise InvalidInput(
                f"a cache of {length} tokens that holds {start} has no room for {tokens_BT.shape[1]}"
            )
        x_BTD: Tensor = self.embedding(tokens_BT).to(self.dtype)
        if streams is not None:
            x_BTD = dropout(x_BTD, self.model.dropout, streams.key("dropout/embedding"))
        wide = torch.promote_types(self.dtype, torch.float32)
        tables = rotary(length, self.model.head_dim, self.model.rope_theta, wide, x_BTD.device)
        positions = tables.slice(start, stop)
        for layer in self.layers:
            x_BTD = layer(x_BTD, positions, streams, cache)
        if cache is not None:
            cache.advance(tokens_BT.shape[1])
        weight_VD = self.embedding.weight if self.output is None else self.output.weight
        return F.linear(self.norm(x_BTD), weight_VD.to(self.dtype)).to(weight_VD.dtype)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the residual stream and of matrix products."""
        return torch.bfloat16 if self.precision == "bf16" else self.embedding.weight.dtype

    def new_cache(self, batch: int, capacity: int) -> KVCache:
        """An empty cache for `batch` sequences of up to `capacity` tokens, on the device of the weights."""
        return KVCache(self.model, batch, capacity, self.dtype, self.embedding.weight.device)


def build(model: Llama, numerics: Numerics, seed: int, device: torch.device | str = "cpu") -> Transformer:
    """A Transformer with its initial weights, on `device`, in fp32. No global generator is touched."""
    transformer = Transformer(model, numerics, device)
    with torch.no_grad():
        for name, parameter in transformer.named_parameters():
            values = parameter.view(-1)
            for start in range(0, values.numel(), _DRAW):
                part = values[start : start + _DRAW]
                part.copy_(initial(model, seed, name, start, part.numel(), parameter.device))
    return transformer


def initial(
    model: Llama, seed: int, name: str, start: int, count: int, device: torch.device | str = "cpu"
) -> Tensor:
    """Initial values start … start+count-1 of parameter `name`, by logical index: fp32 of shape (count,).

    Norms are 1. Matrices are normal with `init_std`; what writes into the residual stream
    (attention.o, feed_forward.down) is scaled by 1/sqrt(2·num_layers), so that the stream's variance
    does not grow with depth (Radford et al. 2019). A function of (seed, name, index) alone.
    """
    if name.endswith("norm.weight"):
        return torch.ones(count, device=device)
    std = model.init_std
    if name.endswith(("attention.o.weight", "feed_forward.down.weight")):
        std /= math.sqrt(2 * model.num_layers)
    return normal(key(seed, "init", name), start, count, device).mul_(std).float()


def _check_shapes(model: Llama) -> None:
    if model.hidden_size % model.num_heads:
        raise InvalidInput(
            f"model.hidden_size = {model.hidden_size} must be a multiple of model.num_heads = {model.num_heads}"
        )
    if model.num_heads % model.num_kv_heads:
        raise InvalidInput(
            f"model.num_heads = {model.num_heads} must be a multiple of model.num_kv_heads = {model.num_kv_heads}"
        )
    if model.head_dim % 2:
        raise InvalidInput(
            f"model.hidden_size / model.num_heads = {model.head_dim} must be even: rotary positions turn pairs"
        )
