"""How much memory a rank needs: a first estimate, from shapes alone.

Nouns: `Term` (one cause of memory, in bytes, with its formula in words) and `Memory` (the terms of
the fullest rank). It counts what lives at the same time at the end of the last leaf, when every
sum of the fold is held and the activations are still there; allocators, fragmentation and kernel
workspaces are not known beforehand. It refuses nothing: `plan.py` compares it with the machine.
"""

from msgspec import Struct

from elinvar.plan.compute import parameters
from elinvar.plan.ownership import aligned_nodes, most_sums_held
from elinvar.spec.execution import Execution
from elinvar.spec.experiment import Experiment
from elinvar.spec.explain import counted

FLOAT_BYTES = 4
TOKEN_BYTES = 8
PROCESS_BYTES = 260 * 2**20
"""Resident memory of a rank besides its tensors: Python, torch and its first operations (CPU build on
Linux; 210 MiB measured for a forked rank, which shares most of it, 270 MiB for a rank alone)."""


class Term(Struct, frozen=True, kw_only=True):
    """One cause of memory."""

    name: str
    num_bytes: int
    because: str


class Memory(Struct, frozen=True, kw_only=True):
    """The terms of the rank that needs most, the largest first."""

    terms: tuple[Term, ...]

    @property
    def num_bytes(self) -> int:
        """Bytes of the fullest rank."""
        return sum(term.num_bytes for term in self.terms)


def estimate(
    experiment: Experiment, execution: Execution, ownership: tuple[tuple[int, ...], ...], device: str
) -> Memory:
    """Memory of the fullest rank, in bytes.

    `ownership` holds the leaves of each rank. On "cpu" the process itself counts too; on "cuda"
    only what lies on the device.
    """
    num_parameters = parameters(experiment.model).total
    num_microbatches = experiment.batch.microbatches
    num_ranks = len(ownership)
    whole = FLOAT_BYTES * num_parameters
    shard = -(-whole // num_ranks)
    most_held = max(most_sums_held(leaves, num_microbatches) for leaves in ownership)
    num_nodes = sum(len(aligned_nodes(leaves, num_microbatches)) for leaves in ownership)

    sharded = execution.sharding == 1 and num_ranks > 1
    terms = [
        Term(name="parameters", num_bytes=whole, because=f"{num_parameters:,} × {FLOAT_BYTES} bytes"),
        Term(
            name="gradients",
            num_bytes=most_held * whole,
            because=f"{counted(most_held, 'sum')} of the fold held at once × {num_parameters:,} × {FLOAT_BYTES} bytes",
        ),
        Term(
            name="moments",
            num_bytes=2 * (shard if sharded else whole),
            because=f"2 × {num_parameters:,} × {FLOAT_BYTES} bytes"
            + (f" / {num_ranks} ranks" if sharded else ""),
        ),
        Term(
            name="activations", num_bytes=_activations(experiment), because="what backward needs of one leaf"
        ),
        Term(
            name="logits",
            num_bytes=3 * FLOAT_BYTES * _leaf_tokens(experiment) * experiment.model.vocab_size,
            because="3 × tokens of a leaf × vocabulary × 4 bytes: logits, their log-softmax, its gradient",
        ),
    ]
    if num_ranks > 1:
        terms.append(
            Term(
                name="exchange",
                num_bytes=whole + num_nodes * shard,
                because=f"one sum to be sent, and a shard of each of the {counted(num_nodes, 'sum')} of all ranks",
            )
        )
    if device == "cpu":
        workers = execution.input.workers
        terms.append(
            Term(
                name="process",
                num_bytes=PROCESS_BYTES,
                because="Python and torch themselves",
            )
        )
        terms.append(
            Term(
                name="input",
                num_bytes=_input(experiment, execution),
                because="microbatches kept ready" + (f", {counted(workers, 'worker')}" if workers else ""),
            )
        )
    return Memory(terms=tuple(sorted(terms, key=lambda term: -term.num_bytes)))


def _leaf_tokens(experiment: Experiment) -> int:
    return experiment.batch.sequences_per_microbatch * experiment.batch.tokens_per_sequence


def _activations(experiment: Experiment) -> int:
    """What autograd keeps of one leaf: the inputs of every product, norm, softmax and gate.

    Per token and layer, in numbers: 2 norms keep input and normalised input (4 · hidden); the query,
    key and value before and after rotation (2 · query width + 3 · key width), the attention's result
    (query width); gate, up, silu(gate) and their product (4 · intermediate). The written-out
    softmax keeps one T × T matrix a head besides, and its dropout mask another.
    """
    model = experiment.model
    queries, keys = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    numbers = 4 * model.hidden_size + 3 * queries + 3 * keys + 4 * model.intermediate_size
    if experiment.numerics.attention == "explicit":
        matrices = 2 if model.dropout > 0 else 1
        numbers += matrices * model.num_heads * experiment.batch.tokens_per_sequence
    per_token = model.num_layers * numbers + 2 * model.hidden_size
    return FLOAT_BYTES * _leaf_tokens(experiment) * per_token


def _input(experiment: Experiment, execution: Execution) -> int:
    """Ready microbatches: one, or with workers what `prefetch_bytes` allows."""
    batch = experiment.batch
    leaf = TOKEN_BYTES * batch.sequences_per_microbatch * (batch.tokens_per_sequence + 1)
    return max(leaf, execution.input.prefetch_bytes) if execution.input.workers else leaf
