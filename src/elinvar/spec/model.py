"""What is learned with: the shape of the network. Part of an experiment.

Noun: `Llama`, a decoder-only transformer with RMSNorm, rotary positions, grouped-query attention
and a SwiGLU feed-forward (Touvron et al. 2023, arXiv 2302.13971; GQA: Ainslie et al. 2023).
"""

from typing import Annotated

from msgspec import Meta, Struct

Positive = Annotated[int, Meta(ge=1)]


class Llama(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="llama"):
    """A Llama-family decoder. Weight names and shapes follow from these numbers alone."""

    vocab_size: Positive
    hidden_size: Positive
    num_layers: Positive
    num_heads: Positive
    num_kv_heads: Positive
    intermediate_size: Positive
    rope_theta: Annotated[float, Meta(gt=0)] = 10000.0
    norm_eps: Annotated[float, Meta(gt=0)] = 1e-5
    init_std: Annotated[float, Meta(gt=0)] = 0.02
    tie_embeddings: bool = True
    dropout: Annotated[float, Meta(ge=0, lt=1)] = 0.0

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_heads


Model = Llama
