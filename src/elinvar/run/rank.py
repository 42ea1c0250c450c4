"""One rank's life: settings, world, assembly, loop, and leaving.

`run_rank` is called in the process that computes: a launched worker, a torchrun rank, or the
command's own process when there is a single rank.
"""

from torch.distributed import Store

from elinvar.parallel.world import close_world, device_for, open_world
from elinvar.run import settings
from elinvar.run.assemble import assemble
from elinvar.run.job import Job, Outcome
from elinvar.run.loop import train
from elinvar.run.recorder import Recorder, Silence
from elinvar.run.stop import Source


def run_rank(
    job: Job, *, rank: int, size: int, local_rank: int, store: Store | None, source: Source
) -> Outcome:
    """Compute this rank's share of the job; collective over all ranks of it."""
    settings.apply(job.experiment.numerics)
    device = device_for(job.execution.device, local_rank)
    world = open_world(rank=rank, size=size, device=device, store=store, timeout_s=job.timeout_s)
    assembly = assemble(job, world)
    if world.rank == 0:
        recorder = Recorder(assembly)
        try:
            outcome = train(assembly, recorder, source)
        finally:
            recorder.close()
    else:
        outcome = train(assembly, Silence(), source)
    close_world(world)
    return outcome
