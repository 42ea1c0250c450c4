"""The loop: the only place where data, model, update, generations and record meet.

It knows no features. What a run is made of was decided in `assemble`; a pipeline run and a plain
run differ in the objects that stand there, not here.
"""

import os
import resource
import signal
import time
from collections.abc import Iterator

from elinvar.checkpoint.capture import Snapshot, capture
from elinvar.checkpoint.retain import retain
from elinvar.data.batch import Microbatch
from elinvar.data.prefetch import microbatches
from elinvar.record.attempt import COMPLETED, INTERRUPTED, STOPPED, UNTIL
from elinvar.record.manifest import Generation
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
    job, world, execution = assembly.job, assembly.world, assembly.job.execution
    owned = job.ownership[world.rank]
    saved = assembly.restored
    digest = saved.update_digest if saved else ""
    feed = microbatches(
        assembly.feed,
        owned,
        assembly.state.cursor,
        workers=execution.input.workers,
        prefetch_bytes=execution.input.prefetch_bytes,
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
            evaluates = job.evaluates and _due(step, execution.record.evaluate_every, last)
            found = _evaluation(assembly, spans) if evaluates else None
            snapshot, known = None, None
            if _due(step, execution.checkpoint.every, last):
                with spans.span("capture"):
                    snapshot = capture(assembly.state, assembly.replicas)
                known = snapshot.update_digest
            elif _due(step, execution.record.digest_every, last):
                with spans.span("digest"):
                    known = digest_state(assembly.state, assembly.replicas)
            digest = known or digest
            record.step(
                report,
                digest=known,
                evaluation=found,
                times=spans.take(),
                step_time_s=time.perf_counter() - began,
                peak_rss_bytes=max(flags[1] for flags in agreed.flags),
            )
            if snapshot is not None:
                saved = _save(assembly, record, snapshot, saved)
    finally:
        feed.close()
    return Outcome(
        reason=_reason(request, assembly.state.step, job),
        step=assembly.state.step,
        saved_step=saved.step if saved else 0,
        update_digest=digest,
    )


def _evaluation(assembly: Assembly, spans: Spans) -> tuple[float, int]:
    with spans.span("evaluate"):
        return evaluate(
            assembly.model, assembly.feed.held_out(), assembly.job.experiment.objective, assembly.world
        )


def _save(assembly: Assembly, record: Record, snapshot: Snapshot, parent: Generation | None) -> Generation:
    """Durable record, then the generation, then retention."""
    began = time.perf_counter()
    record.sync()
    saved = assembly.commit(snapshot, parent.name if parent else None)
    removed: list[Generation] = []
    if assembly.world.rank == 0:
        removed = retain(assembly.folder.generations_path, assembly.job.execution.checkpoint.keep)
    record.generation(saved, removed, time.perf_counter() - began)
    return saved


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
