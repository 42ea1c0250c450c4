"""The loop: the only place where data, model, update, generations and record meet.

It knows no features. What a run is made of was decided in `assemble`; a pipeline run and a plain
run differ in the objects that stand there, not here.
"""

import os
import resource
import signal
import time
from collections.abc import Iterator

from elinvar.checkpoint.capture import capture
from elinvar.checkpoint.commit import commit
from elinvar.checkpoint.retain import retain
from elinvar.data.batch import Microbatch
from elinvar.data.prefetch import microbatches
from elinvar.record.attempt import COMPLETED, INTERRUPTED, STOPPED, UNTIL
from elinvar.run.assemble import Assembly
from elinvar.run.job import Job, Outcome
from elinvar.run.recorder import Record
from elinvar.run.stop import Request, Source
from elinvar.trace import Spans
from elinvar.train.evaluate import evaluate
from elinvar.train.gradient import Window
from elinvar.train.state import digest_state
from elinvar.train.update import StepReport, Totals, totals, update


def train(assembly: Assembly, record: Record, source: Source) -> Outcome:
    """Run from the restored state to the job's last step, or to where a stop is agreed.

    Every generation is preceded by a durable record and followed by retention.
    """
    job, world = assembly.job, assembly.world
    owned = job.ownership[world.rank]
    saved = assembly.restored
    digest = saved.update_digest if saved else ""
    feed = microbatches(
        assembly.feed,
        owned,
        assembly.state.cursor,
        workers=job.execution.input.workers,
        prefetch_bytes=job.execution.input.prefetch_bytes,
        until_step=job.until,
    )
    spans, request = Spans(), Request.NONE
    try:
        while assembly.state.step < job.until and request == Request.NONE:
            step = assembly.state.step + 1
            began = time.perf_counter()
            _drill(job, world.rank, step)
            agreed, report = _step(assembly, feed, spans, source)
            request = Request(max(flags[0] for flags in agreed.flags))
            last = step == job.until or request != Request.NONE
            found = None
            if _due(step, job.execution.record.evaluate_every, last):
                with spans.span("evaluate"):
                    found = evaluate(
                        assembly.model, assembly.feed.held_out(), job.experiment.objective, world
                    )
            snapshot = None
            if _due(step, job.execution.checkpoint.every, last):
                with spans.span("capture"):
                    snapshot = capture(assembly.state, assembly.replicas)
                digest = snapshot.update_digest
            elif _due(step, job.execution.record.digest_every, last):
                with spans.span("digest"):
                    digest = digest_state(assembly.state, assembly.replicas)
            known = snapshot is not None or _due(step, job.execution.record.digest_every, last)
            record.step(
                report,
                digest=digest if known else None,
                evaluation=found,
                times=spans.take(),
                step_time_s=time.perf_counter() - began,
                peak_rss_bytes=max(flags[1] for flags in agreed.flags),
            )
            if snapshot is not None:
                began = time.perf_counter()
                record.sync()
                experiment, math, prints = assembly.digests
                saved = commit(
                    snapshot,
                    world,
                    assembly.folder.generations_path,
                    experiment_digest=experiment,
                    math_digest=math,
                    fingerprint_digest=prints,
                    parent=saved.name if saved else None,
                )
                removed = (
                    retain(assembly.folder.generations_path, job.execution.checkpoint.keep)
                    if world.rank == 0
                    else []
                )
                record.generation(saved, removed, time.perf_counter() - began)
    finally:
        feed.close()
    return Outcome(
        reason=_reason(request, assembly.state.step, job),
        step=assembly.state.step,
        saved_step=saved.step if saved else 0,
        update_digest=digest,
    )


def _step(
    assembly: Assembly, feed: Iterator[Microbatch], spans: Spans, source: Source
) -> tuple[Totals, StepReport]:
    """Gradients of this rank's leaves, the exchange of totals, the update."""
    experiment = assembly.job.experiment
    window = Window(experiment.batch.microbatches)
    for _ in assembly.job.ownership[assembly.world.rank]:
        with spans.span("input"):
            microbatch = next(feed)
        with spans.span("compute"):
            window.compute(assembly.model, microbatch, experiment.objective)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    with spans.span("exchange"):
        agreed = totals(
            window, assembly.replicas, experiment.batch.sequences_per_microbatch, [source.heard(), peak]
        )
    with spans.span("update"):
        assembly.state, report = update(assembly.state, window, agreed, assembly.replicas, experiment)
    return agreed, report


def _due(step: int, every: int, last: bool) -> bool:
    """Whether something done every `every` steps (0: only at the last) is due after this step."""
    return last or (every > 0 and step % every == 0)


def _reason(request: Request, step: int, job: Job) -> str:
    match request:
        case Request.INTERRUPT:
            return INTERRUPTED
        case Request.STOP:
            return STOPPED
        case Request.NONE:
            return COMPLETED if step >= job.experiment.length.steps else UNTIL


def _drill(job: Job, rank: int, step: int) -> None:
    """For drills only: die here as a machine would take us, without a chance to save."""
    if job.kill is not None and (job.kill.rank, job.kill.step) == (rank, step):
        os.kill(os.getpid(), signal.SIGKILL)
