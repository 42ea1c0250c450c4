"""The loss on the fixed held-out samples: read only, so it can never move a training bit.

The leaves are the same for every execution, ranks take them in turn, and their sums are folded in
leaf order, so the number is exact under any rank count too.
"""

import math
from collections.abc import Sequence

import torch
from torch import nn

from elinvar.data.batch import Microbatch
from elinvar.numerics.reduce import fold_scalars
from elinvar.parallel.collective import gather_rows
from elinvar.parallel.world import World
from elinvar.spec.objective import Objective
from elinvar.train.gradient import to_device
from elinvar.train.objective import loss_sum


@torch.no_grad()
def evaluate(
    model: nn.Module, leaves: Sequence[Microbatch], objective: Objective, world: World
) -> tuple[float, int]:
    """(mean loss in nats per target token, target tokens); NaN and 0 without targets."""
    if not leaves:
        return math.nan, 0
    most = -(-len(leaves) // world.size)
    mine = torch.zeros(most, dtype=torch.float64, device=world.device)
    for place, leaf in enumerate(leaves[world.rank :: world.size]):
        inputs_BT, targets_BT, weights_BT = to_device(leaf, world.device)
        mine[place] = loss_sum(objective, model(inputs_BT, None), targets_BT, weights_BT)
    rows = gather_rows(world, mine).tolist()
    sums = [rows[i % world.size][i // world.size] for i in range(len(leaves))]
    tokens = sum(leaf.num_targets for leaf in leaves)
    return (fold_scalars(sums) / tokens, tokens) if tokens else (math.nan, 0)
