"""Moving data between ranks by rank index, and nothing else.

Every function here is an all-to-all made of sends and receives: it cannot add, and on gloo nothing
is faster. No floating-point number is ever summed by a collective in Elinvar.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.distributed as dist
from torch import Tensor

from elinvar.parallel.world import World


def swap(world: World, sent: Sequence[Tensor], received: Sequence[Tensor]) -> None:
    """Send `sent[r]` to rank r and fill `received[r]` with what it sent here; in place, nothing staged.

    Contiguous 1-D tensors; the lengths of a pair must agree on both sides, and an empty one is not
    sent. The part for this rank itself is copied.
    """
    received[world.rank].copy_(sent[world.rank])
    if world.group is None:
        return
    moves = []
    for rank in range(world.size):
        if rank != world.rank and sent[rank].numel():
            moves.append(dist.P2POp(dist.isend, sent[rank], rank, group=world.group))
        if rank != world.rank and received[rank].numel():
            moves.append(dist.P2POp(dist.irecv, received[rank], rank, group=world.group))
    for work in dist.batch_isend_irecv(moves) if moves else ():
        work.wait()


def share(world: World, flat: Tensor, bounds: Sequence[int]) -> None:
    """Bring every rank's slice [bounds[r], bounds[r + 1]) of `flat` to all ranks, in place."""
    slices = [flat[start:stop] for start, stop in pairwise(bounds)]
    here = slices[world.rank]
    moves = []
    for rank in range(world.size):
        if rank != world.rank and here.numel():
            moves.append(dist.P2POp(dist.isend, here, rank, group=world.group))
        if rank != world.rank and slices[rank].numel():
            moves.append(dist.P2POp(dist.irecv, slices[rank], rank, group=world.group))
    for work in dist.batch_isend_irecv(moves) if moves else ():
        work.wait()


def exchange(world: World, sent: Tensor, sent_sizes: Sequence[int], received_sizes: Sequence[int]) -> Tensor:
    """Send consecutive slices of `sent` to ranks 0, 1, …; returns what they sent here, in rank order.

    `sent` is 1-D with sum(sent_sizes) elements; the result is 1-D with sum(received_sizes).
    """
    received = torch.empty(sum(received_sizes), dtype=sent.dtype, device=sent.device)
    swap(world, sent.split(list(sent_sizes)), received.split(list(received_sizes)))
    return received


def gather_rows(world: World, row: Tensor) -> Tensor:
    """The equally long 1-D rows of all ranks, stacked: [size, len(row)], on every rank."""
    if world.group is None:
        return row.unsqueeze(0)
    width = [row.numel()] * world.size
    return exchange(world, row.repeat(world.size), width, width).view(world.size, -1)


def gather_pieces(world: World, piece: Tensor, sizes: Sequence[int]) -> Tensor:
    """The 1-D pieces of all ranks, concatenated in rank order on every rank; rank r's has sizes[r] elements."""
    if world.group is None:
        return piece
    assert piece.numel() == sizes[world.rank]
    return exchange(world, piece.repeat(world.size), [piece.numel()] * world.size, sizes)


def gather_bytes(world: World, payload: bytes) -> list[bytes]:
    """A byte string of any length from every rank, in rank order, on every rank."""
    if world.group is None:
        return [payload]
    here = torch.frombuffer(bytearray(payload or b"\0"), dtype=torch.uint8).to(world.device)
    lengths = gather_rows(world, torch.tensor([len(payload)], dtype=torch.int64, device=world.device))
    sizes = [max(1, int(length)) for length in lengths[:, 0].tolist()]
    joined = gather_pieces(world, here, sizes).cpu().numpy().tobytes()
    payloads, start = [], 0
    for size, length in zip(sizes, lengths[:, 0].tolist(), strict=True):
        payloads.append(joined[start : start + int(length)])
        start += size
    return payloads
