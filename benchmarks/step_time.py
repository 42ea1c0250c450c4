"""Claim: exact steps cost at most 1.08 of the usual ones.

    python benchmarks/step_time.py [--preset small] [--pairs 15]

Both loops train the same model on the same microbatches with the same thread count in the same
process: ours (canonical fold, order-free norm; ZeRO-1 where there are several ranks) and plain
PyTorch (gradients added in `.grad`, `clip_grad_norm_`, `torch.optim.AdamW(foreach=True)`; torch DDP
with `no_sync` where there are several). They take turns, step by step, and change who goes first.
No digests, no generations, no input workers on either side. Printed: median seconds of each, and
the median and spread of the paired ratios.
"""

import argparse
import statistics
import time

import torch
import torch.distributed as dist
from msgspec.structs import replace
from torch.distributed import PrefixStore, Store
from torch.nn.parallel import DistributedDataParallel

from elinvar.data.feed import Feed
from elinvar.data.store import open_store
from elinvar.model.transformer import build
from elinvar.parallel.replicate import Replicas
from elinvar.parallel.shard import Layout
from elinvar.parallel.world import close_world, open_world
from elinvar.plan.machine import read_machine
from elinvar.plan.plan import make_plan
from elinvar.run import settings
from elinvar.run.forkserver import warm_up
from elinvar.run.job import Job, Outcome
from elinvar.run.launch import launch
from elinvar.run.worker import guarded
from elinvar.spec.execution import Execution
from elinvar.spec.model import parameter_shapes
from elinvar.spec.read import read
from elinvar.train.gradient import Window
from elinvar.train.state import fresh_state
from elinvar.train.update import totals, update
from elinvar.verify.oracle import plain_loop

WARM_UP = 2


def measure(job: Job, rank: int, size: int, host: str, port: int) -> Outcome:
    """Entry point of a rank: run the pairs; rank 0's times travel home as text."""
    return guarded(_measure, job, rank, size, host, port)


def _measure(job: Job, rank: int, size: int, store: Store) -> Outcome:
    experiment = job.experiment
    settings.apply(experiment.numerics)
    world = open_world(
        rank=rank, size=size, device=torch.device("cpu"), store=PrefixStore("bench", store), timeout_s=600
    )
    feed = Feed(open_store(experiment.data), experiment)
    leaves = job.ownership[rank]
    plain = plain_loop(experiment, feed, leaves, DistributedDataParallel if size > 1 else None)
    model = build(experiment.model, experiment.numerics, experiment.seed)
    replicas = Replicas(
        world,
        Layout(parameter_shapes(experiment.model), size),
        job.ownership,
        experiment.batch.microbatches,
        job.execution.sharding,
    )
    state = fresh_state(dict(model.named_parameters()), replicas.held, feed.start())

    def ours() -> None:
        window = Window(experiment.batch.microbatches)
        for leaf in leaves:
            microbatch = feed.training(state.step + 1, leaf)
            window.compute(model, microbatch, experiment.objective)
        agreed = totals(window, replicas, experiment.batch.sequences_per_microbatch, [0])
        update(state, window, agreed, replicas, experiment)

    def theirs(step: int) -> None:
        if isinstance(plain.model, DistributedDataParallel):
            plain.step(step, plain.model.no_sync)
        else:
            plain.step(step)

    times = []
    for step in range(1, job.until + 1):
        order = [("ours", ours), ("theirs", lambda step=step: theirs(step))]
        found = {}
        for name, run in order if step % 2 else reversed(order):
            if size > 1:
                dist.barrier()
            began = time.perf_counter()
            run()
            if size > 1:
                dist.barrier()
            found[name] = time.perf_counter() - began
        if step > WARM_UP:
            times.append((found["ours"], found["theirs"]))
    close_world(world)
    text = " ".join(f"{a:.6f}/{b:.6f}" for a, b in times)
    return Outcome(reason="completed", step=job.until, saved_step=0, update_digest="", message=text)


def main() -> None:
    """Measure at 1 and 2 ranks and print one line each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--preset", default="small")
    parser.add_argument("--pairs", type=int, default=15)
    arguments = parser.parse_args()
    experiment = read(arguments.preset).experiment
    experiment = replace(
        experiment,
        batch=replace(experiment.batch, microbatches=8, sequences_per_microbatch=1, tokens_per_sequence=256),
    )
    print(f"torch {torch.__version__} · {arguments.preset} · 8 microbatches of 256 tokens · 1 thread a rank")
    for ranks in (1, 2):
        execution = Execution(ranks=ranks, sharding=1 if ranks > 1 else 0)
        plan = make_plan(experiment, execution, read_machine("this"))
        job = Job(
            folder="",
            attempt=1,
            experiment=experiment,
            execution=plan.execution,
            wanted_ranks=ranks,
            ownership=plan.ownership,
            until=arguments.pairs + WARM_UP,
            quiet=True,
        )
        pairs = [tuple(map(float, pair.split("/"))) for pair in launch(job, measure).message.split()]
        ratios = sorted(a / b for a, b in pairs)
        peer = "a plain loop" if ranks == 1 else "torch DDP with no_sync"
        tokens = experiment.batch.tokens / statistics.median(a for a, _ in pairs)
        print(
            f"{ranks} rank{'s' * (ranks > 1)}: ours {statistics.median(a for a, _ in pairs):.3f} s, "
            f"{peer} {statistics.median(b for _, b in pairs):.3f} s; "
            f"ratio median {statistics.median(ratios):.3f}, "
            f"quartiles {ratios[len(ratios) // 4]:.3f}-{ratios[-1 - len(ratios) // 4]:.3f} "
            f"({len(ratios)} pairs); {tokens:,.0f} tokens/s"
        )


if __name__ == "__main__":
    warm_up()
    main()
