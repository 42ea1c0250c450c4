"""The same experiment as the field computes it: plain PyTorch, for contrast and as a yardstick.

Nouns: the naive loop (mean losses divided by the number of microbatches, gradients added in
`.grad`) and DDP with `no_sync`. Both use `torch.optim.AdamW` and `clip_grad_norm_`, our model, our
data and our initial weights, so that what differs is how sums are taken.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn
from torch.distributed import PrefixStore, Store
from torch.nn.parallel import DistributedDataParallel

from elinvar.data.feed import Feed
from elinvar.data.store import open_store
from elinvar.model.transformer import build
from elinvar.numerics.digest import lanes, update_digest
from elinvar.numerics.streams import Streams
from elinvar.optimizer.adamw import is_decayed
from elinvar.optimizer.schedule import lr_at
from elinvar.parallel.world import World, close_world, open_world
from elinvar.record.attempt import UNTIL
from elinvar.run import settings
from elinvar.run.job import Job, Outcome
from elinvar.run.prepare import cache_folder
from elinvar.run.worker import guarded
from elinvar.spec.experiment import Experiment
from elinvar.train.gradient import to_device

PARAMETERS = "parameters.safetensors"


def naive(job: Job, rank: int, size: int, host: str, port: int) -> Outcome:
    """Entry point of a launched process: the plain loop."""
    return guarded(_naive, job, rank, size, host, port)


def ddp(job: Job, rank: int, size: int, host: str, port: int) -> Outcome:
    """Entry point of a launched process: torch DDP."""
    return guarded(_ddp, job, rank, size, host, port)


@dataclass(frozen=True)
class PlainLoop:
    """A training loop as most are written. `model` is called; `inner` holds the parameters."""

    experiment: Experiment
    feed: Feed
    model: Callable[..., torch.Tensor]
    inner: nn.Module
    optimizer: torch.optim.AdamW
    leaves: tuple[int, ...]

    def step(self, step: int, held_back: Callable[[], AbstractContextManager[None]] = nullcontext) -> None:
        """One update; `held_back` wraps every leaf but the last (DDP's `no_sync`)."""
        optimizer = self.experiment.optimizer
        for group in self.optimizer.param_groups:
            group["lr"] = lr_at(self.experiment.schedule, optimizer.lr, step)
        self.optimizer.zero_grad(set_to_none=True)
        for leaf in self.leaves:
            with nullcontext() if leaf == self.leaves[-1] else held_back():
                microbatch = self.feed.training(step, leaf)
                inputs, targets, _ = to_device(microbatch, torch.device("cpu"))
                logits = self.model(inputs, Streams(microbatch.seed, step, leaf))
                loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
                (loss / len(self.leaves)).backward()
        if optimizer.max_grad_norm:
            torch.nn.utils.clip_grad_norm_(self.inner.parameters(), optimizer.max_grad_norm)
        self.optimizer.step()


def plain_loop(
    experiment: Experiment,
    feed: Feed,
    leaves: tuple[int, ...],
    wrap: Callable[[nn.Module], nn.Module] | None = None,
) -> PlainLoop:
    """The loop over our model and data; `wrap` makes the module that is called, as DDP does."""
    inner = build(experiment.model, experiment.numerics, experiment.seed)
    optimizer = experiment.optimizer
    groups: list[dict[str, object]] = [
        {
            "params": [p for p in inner.parameters() if is_decayed(optimizer, p.shape) == flag],
            "weight_decay": optimizer.weight_decay if flag else 0.0,
        }
        for flag in (True, False)
    ]
    return PlainLoop(
        experiment=experiment,
        feed=feed,
        model=wrap(inner) if wrap else inner,
        inner=inner,
        optimizer=torch.optim.AdamW(
            [group for group in groups if group["params"]],
            lr=optimizer.lr,
            betas=(optimizer.beta1, optimizer.beta2),
            eps=optimizer.eps,
            foreach=True,
        ),
        leaves=leaves,
    )


def _naive(job: Job, rank: int, size: int, store: Store) -> Outcome:
    del store, rank, size
    loop = plain_loop(job.experiment, _feed(job), tuple(range(job.experiment.batch.microbatches)))
    for step in range(1, job.until + 1):
        loop.step(step)
    return _outcome(job, loop)


def _ddp(job: Job, rank: int, size: int, store: Store) -> Outcome:
    group = PrefixStore("elinvar/contrast", store)
    world: World = open_world(
        rank=rank, size=size, device=torch.device("cpu"), store=group, timeout_s=job.timeout_s
    )
    loop = plain_loop(job.experiment, _feed(job), job.ownership[rank], DistributedDataParallel)
    assert isinstance(loop.model, DistributedDataParallel)
    for step in range(1, job.until + 1):
        loop.step(step, loop.model.no_sync)
    outcome = (
        _outcome(job, loop)
        if rank == 0
        else Outcome(reason=UNTIL, step=job.until, saved_step=0, update_digest="")
    )
    close_world(world)
    return outcome


def _feed(job: Job) -> Feed:
    settings.apply(job.experiment.numerics)
    return Feed(open_store(job.experiment.data, cache_folder()), job.experiment)


def _outcome(job: Job, loop: PlainLoop) -> Outcome:
    """The digest of the plain loop's state under the names that ours has, and its parameters in a file."""
    tensors = {}
    for name, parameter in loop.inner.named_parameters():
        state = loop.optimizer.state[parameter]
        for kind, tensor in (
            ("parameter", parameter),
            ("exp_avg", state["exp_avg"]),
            ("exp_avg_sq", state["exp_avg_sq"]),
        ):
            tensors[f"{kind}/{name}"] = ("float32", tuple(parameter.shape), lanes(tensor))
    tokens = job.until * job.experiment.batch.tokens
    scalars: dict[str, int | str] = {
        "step": job.until,
        "optimizer_steps": job.until,
        "tokens": tokens,
        "cursor_position": job.until * job.experiment.batch.sequences,
        "cursor_dataset": loop.feed.store.digest,
    }
    save_file(
        {name: parameter.detach().contiguous() for name, parameter in loop.inner.named_parameters()},
        Path(job.folder) / PARAMETERS,
    )
    return Outcome(reason=UNTIL, step=job.until, saved_step=0, update_digest=update_digest(tensors, scalars))
