"""Everything that a rank needs, put together before its first step.

Noun: `Assembly`. What a run is made of is decided here by the values of the job; the loop that
follows has no branch on features.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from elinvar.checkpoint.capture import Snapshot, capture
from elinvar.checkpoint.commit import commit
from elinvar.checkpoint.restore import candidates, restore
from elinvar.data.cursor import Cursor
from elinvar.data.feed import Feed
from elinvar.data.store import open_store
from elinvar.errors import InvalidInput
from elinvar.identity import Digest
from elinvar.model.transformer import Transformer, build
from elinvar.numerics.fingerprint import fingerprint, fingerprint_digest
from elinvar.parallel.collective import gather_bytes
from elinvar.parallel.replicate import Replicas
from elinvar.parallel.shard import Layout
from elinvar.parallel.world import World
from elinvar.plan.claim import differing
from elinvar.record.folder import RunFolder
from elinvar.record.manifest import Generation, read_manifest
from elinvar.run.job import Job, Source
from elinvar.spec.canonical import experiment_digest, math_digest
from elinvar.spec.model import parameter_shapes
from elinvar.train.state import RunState, fresh_state


@dataclass
class Assembly:
    """The parts of one rank; `restored` is the generation that the state came from, if any, and
    `notes` what the user should hear about it.
    """

    job: Job
    folder: RunFolder
    world: World
    replicas: Replicas
    feed: Feed
    model: Transformer
    state: RunState
    fingerprint: dict[str, str]
    restored: Generation | None
    notes: tuple[str, ...]

    @property
    def digests(self) -> tuple[Digest, Digest, Digest]:
        """(experiment, math, fingerprint) digests, as a generation records them."""
        return (
            experiment_digest(self.job.experiment),
            math_digest(self.job.experiment),
            fingerprint_digest(self.fingerprint),
        )

    def commit(self, snapshot: Snapshot, parent: str | None) -> Generation:
        """Write `snapshot` as a generation of this run; collective."""
        experiment, math, prints = self.digests
        return commit(
            snapshot,
            self.world,
            self.folder.generations_path,
            experiment_digest=experiment,
            math_digest=math,
            fingerprint_digest=prints,
            parent=parent,
        )


def assemble(job: Job, world: World) -> Assembly:
    """Open data, build the model, and restore what is to be restored; collective.

    Raises InvalidInput where the job would continue another experiment, other data, or on other
    kernels without leave.
    """
    experiment = job.experiment
    prints = fingerprint(experiment.numerics, world.device.type)
    _check_alike(world, prints)
    cache = os.environ.get("ELINVAR_CACHE")
    store = open_store(experiment.data, Path(cache) if cache else None)
    feed = Feed(store, experiment)
    model = build(experiment.model, experiment.numerics, experiment.seed, str(world.device))
    layout = Layout(parameter_shapes(experiment.model), world.size)
    replicas = Replicas(world, layout, job.ownership, experiment.batch.microbatches, job.execution.sharding)
    parameters = dict(model.named_parameters())
    assert list(parameters) == list(layout.shapes), "the model's parameters are the spec's, in its order"
    state = fresh_state(parameters, replicas.held, Cursor(dataset=store.digest, position=0))
    assembly = Assembly(
        job=job,
        folder=RunFolder.open(Path(job.folder)),
        world=world,
        replicas=replicas,
        feed=feed,
        model=model,
        state=state,
        fingerprint=prints,
        restored=None,
        notes=(),
    )
    _restore(assembly, store.digest)
    return assembly


def _restore(assembly: Assembly, dataset: Digest) -> None:
    job = assembly.job
    found = candidates(assembly.folder.generations_path, job.at)
    if found:
        restored = restore(assembly.state, assembly.replicas, found, dataset, assembly.digests[1])
        _check_continuation(assembly, restored.generation)
        assembly.restored, assembly.notes = restored.generation, restored.rejected
    elif job.fork is not None:
        _begin_fork(assembly, job.fork, dataset)


def _begin_fork(assembly: Assembly, source: Source, dataset: Digest) -> None:
    """Take the parent's state over and commit it here at once, so that the fork stands alone."""
    found = candidates(Path(source.generations), source.step)
    restored = restore(assembly.state, assembly.replicas, found, None)
    state = assembly.state
    state.cursor = Cursor(dataset=dataset, position=state.step * assembly.job.experiment.batch.sequences)
    assembly.restored = assembly.commit(capture(state, assembly.replicas), restored.generation.name)


def _check_alike(world: World, prints: dict[str, str]) -> None:
    """Every rank must compute with the same kernels; a mixed fleet keeps no promise of bits."""
    everyone = gather_bytes(world, fingerprint_digest(prints).encode())
    for rank, digest in enumerate(everyone):
        if digest != everyone[0]:
            raise InvalidInput(
                f"rank {rank} has another fingerprint than rank 0: other hardware or library builds",
                ["run all ranks on equal machines with equal installations"],
            )


def _check_continuation(assembly: Assembly, generation: Generation) -> None:
    """Same bits, or same math with leave; anything else is another experiment."""
    job = assembly.job
    manifest = read_manifest(generation)
    experiment, math, prints = assembly.digests
    if manifest.math_digest != math and manifest.experiment_digest != experiment:
        raise InvalidInput(
            f"{assembly.folder.path} holds another experiment than the one asked for",
            [f"its newest generation: {manifest.experiment_digest}", f"asked for:             {experiment}"],
        )
    if job.accept or (manifest.experiment_digest, manifest.fingerprint_digest) == (experiment, prints):
        return
    lines = ["the experiment's numerics or the cut into microbatches differ"]
    if manifest.fingerprint_digest != prints:
        earlier = [
            attempt.start.fingerprint
            for attempt in assembly.folder.attempts()
            if fingerprint_digest(attempt.start.fingerprint) == manifest.fingerprint_digest
        ]
        lines = (
            list(differing(earlier[-1], assembly.fingerprint)) if earlier else ["unknown kernels wrote it"]
        )
    raise InvalidInput(
        f"continuing generation {generation.name} here gives the same math, not the same bits",
        [*lines, "to go on all the same, recorded in the attempt: --accept same-math"],
    )
