"""How much arithmetic an experiment asks for.

Nouns: `Parameters` (counts by group) and floating-point operations. One multiply-add counts as
two operations. Attention is counted over all T keys of every query, without the half that the
causal mask removes, as most published figures do; norms, activations and the optimizer are not
counted (below one percent for models worth planning).
"""

from math import prod

from msgspec import Struct

from elinvar.spec.experiment import Experiment
from elinvar.spec.model import Llama, parameter_shapes


class Parameters(Struct, frozen=True, kw_only=True):
    """Numbers of parameters by group; a tied output matrix counts once, under `embedding`."""

    embedding: int
    attention: int
    feed_forward: int
    norm: int
    output: int

    @property
    def total(self) -> int:
        """All parameters, each once."""
        return self.embedding + self.attention + self.feed_forward + self.norm + self.output


def parameters(model: Llama) -> Parameters:
    """The parameters of `model`, by what they do."""
    counts = dict.fromkeys(Parameters.__struct_fields__, 0)
    for name, shape in parameter_shapes(model).items():
        counts[_group(name)] += prod(shape)
    return Parameters(**counts)


def _group(name: str) -> str:
    if "norm" in name:
        return "norm"
    for group in ("embedding", "output"):
        if name.startswith(group):
            return group
    return "feed_forward" if ".feed_forward." in name else "attention"


def flops_per_token(experiment: Experiment) -> int:
    """Operations of forward and backward for one target token.

    6 for each weight of a matrix product (2 forward, 4 backward; the embedding is a look-up, the
    output a product even when tied) and 12 · layers · heads · head_dim · T for attention (Kaplan et
    al. 2020, arXiv 2001.08361, Table 1; Chowdhery et al. 2022, arXiv 2204.02311, Appendix B).
    """
    model = experiment.model
    counts = parameters(model)
    weights = counts.attention + counts.feed_forward + model.vocab_size * model.hidden_size
    width = model.num_heads * model.head_dim
    return 6 * weights + 12 * model.num_layers * width * experiment.batch.tokens_per_sequence


def flops_per_step(experiment: Experiment) -> int:
    """Operations of forward and backward for one step, all ranks together."""
    return flops_per_token(experiment) * experiment.batch.tokens
