"""The ranks that compute one run together.

Noun: `World`: this process's rank, how many there are, its device, and the process group that
moves data between them (none for a single rank). It holds no global state of its own.
"""

import datetime as dt
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed import Store

from elinvar.errors import DoesNotFit


@dataclass(frozen=True)
class World:
    """Rank `rank` of `size`, computing on `device`; `group` is None exactly when size is 1."""

    rank: int
    size: int
    device: torch.device
    group: dist.ProcessGroup | None = None


def device_for(choice: str, local_rank: int) -> torch.device:
    """The device of a rank: `auto` is CUDA where PyTorch sees one. Raises DoesNotFit where there is none."""
    available = torch.cuda.is_available()
    if choice == "cpu" or (choice == "auto" and not available):
        return torch.device("cpu")
    if not available:
        raise DoesNotFit(
            "execution.device is cuda, but PyTorch sees no CUDA device",
            [f"PyTorch {torch.__version__}; use execution.device=cpu, or install a CUDA build of PyTorch"],
        )
    if local_rank >= torch.cuda.device_count():
        raise DoesNotFit(
            f"local rank {local_rank} has no CUDA device of its own",
            [f"this machine has {torch.cuda.device_count()}; lower execution.ranks or use more machines"],
        )
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device


def open_world(*, rank: int, size: int, device: torch.device, store: Store | None, timeout_s: float) -> World:
    """Join `size` ranks over `store`: gloo on the CPU, NCCL on CUDA.

    A collective that waits longer than `timeout_s` seconds raises on every rank that still lives.
    """
    if size == 1:
        return World(rank=0, size=1, device=device)
    assert store is not None, "several ranks need a store to meet at"
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        store=store,
        rank=rank,
        world_size=size,
        timeout=dt.timedelta(seconds=timeout_s),
    )
    return World(rank=rank, size=size, device=device, group=dist.group.WORLD)


def close_world(world: World) -> None:
    """Leave the process group."""
    if world.group is not None:
        dist.destroy_process_group()
