"""What ranks do in the tests of data movement; imported by name in their processes."""

import torch

from elinvar.numerics.reduce import Fold
from elinvar.parallel.collective import exchange, gather_bytes, gather_pieces, gather_rows
from elinvar.parallel.replicate import Replicas
from elinvar.parallel.shard import Layout
from elinvar.plan.ownership import owners

SHAPES = {"a": (7, 3), "b": (5,), "c": (2, 1030), "d": ()}


def move(world):
    """All movements, each with data that name their origin."""
    rank, size = world.rank, world.size
    # Rank r sends r + s + 1 numbers to rank s; rank 0 sends rank 1 nothing.
    sizes = [[r + s + 1 if (r, s) != (0, 1) else 0 for s in range(size)] for r in range(size)]
    sent = torch.cat([torch.full((n,), 100.0 * rank + s) for s, n in enumerate(sizes[rank])])
    received = exchange(world, sent, sizes[rank], [sizes[r][rank] for r in range(size)])
    piece = torch.arange(rank + 1, dtype=torch.float64) + 10 * rank  # rank 0 has one element, and so on
    empty_first = torch.arange(rank, dtype=torch.int64)
    payloads = [b"", b"x" * 3000, b"\x00\xff"]
    return {
        "exchange": received.tolist(),
        "rows": gather_rows(world, torch.tensor([rank, rank * rank])).tolist(),
        "pieces": gather_pieces(world, piece, [r + 1 for r in range(size)]).tolist(),
        "uneven": gather_pieces(world, empty_first, list(range(size))).tolist(),
        "bytes": gather_bytes(world, payloads[rank % 3]),
        "nothing": gather_bytes(world, b""),
    }


def leaf_of(index, *, absent=()):
    """The gradients of a leaf: numbers of very different size, so that the order of sums shows."""
    generator = torch.Generator().manual_seed(index)
    scale = 10.0 ** (index % 5 - 2)
    return [
        None
        if (index, name) in absent or ("all", name) in absent
        else torch.randn(shape, generator=generator) * scale
        for name, shape in SHAPES.items()
    ]


def reduce_all(world, num_leaves, ownership, sharding, absent):
    """(gradients of the shard, norm, delivered, published) of one reduction, as nested lists of floats."""
    replicas = Replicas(
        world,
        Layout(SHAPES, world.size),
        owners(num_leaves, world.size, ownership),
        num_leaves,
        sharding,
    )
    fold = Fold(num_leaves)
    for leaf in replicas.owned[world.rank]:
        fold.push((0, leaf), leaf_of(leaf, absent=absent))
    reduced = replicas.reduce(fold)
    norm = replicas.norm(reduced)
    delivered = replicas.deliver(reduced)
    storage = torch.zeros(replicas.layout.num_elements)
    places = replicas.layout.split(storage, replicas.layout.whole())
    by_name = dict(zip(SHAPES, places, strict=True))
    for piece, found in zip(replicas.held, delivered, strict=True):
        by_name[piece.name][piece.start : piece.stop].copy_(found)
    replicas.publish(storage)
    return {
        "pieces": [(piece.name, piece.start, piece.stop) for piece in replicas.shard],
        "reduced": [tensor.tolist() for tensor in reduced],
        "norm": norm.hex(),
        "parameters": [
            place.view(shape).view(torch.int32).tolist()
            for place, shape in zip(places, SHAPES.values(), strict=True)
        ],
    }


def reduce_cases(world, cases):
    """Several reductions in one process group."""
    return [reduce_all(world, *case) for case in cases]


def fail(world):
    """A rank that does not get far."""
    return 1 // world.rank
