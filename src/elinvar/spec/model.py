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


def parameter_shapes(model: Llama) -> dict[str, tuple[int, ...]]:
    """The shape of each parameter by its canonical name, in the order in which a forward pass meets them.

    A matrix is (outputs, inputs). Tied embeddings are one parameter, so `output.weight` is absent.
    """
    hidden, inner = model.hidden_size, model.intermediate_size
    queries, keys = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    layer: dict[str, tuple[int, ...]] = {
        "attention_norm.weight": (hidden,),
        "attention.q.weight": (queries, hidden),
        "attention.k.weight": (keys, hidden),
        "attention.v.weight": (keys, hidden),
        "attention.o.weight": (hidden, queries),
        "feed_forward_norm.weight": (hidden,),
        "feed_forward.gate.weight": (inner, hidden),
        "feed_forward.up.weight": (inner, hidden),
        "feed_forward.down.weight": (hidden, inner),
    }
    shapes: dict[str, tuple[int, ...]] = {"embedding.weight": (model.vocab_size, hidden)}
    for index in range(model.num_layers):
        shapes |= {f"layers.{index}.{name}": shape for name, shape in layer.items()}
    shapes["norm.weight"] = (hidden,)
    if not model.tie_embeddings:
        shapes["output.weight"] = (model.vocab_size, hidden)
    return shapes
