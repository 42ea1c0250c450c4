"""A small experiment, and the parts of one rank that computes it: what tests of training share."""

import multiprocessing
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch.utils import deterministic

from elinvar.data.feed import Feed
from elinvar.data.store import open_store
from elinvar.model.transformer import Transformer, build
from elinvar.parallel.replicate import Replicas
from elinvar.parallel.shard import Layout
from elinvar.parallel.world import World
from elinvar.plan.machine import Machine
from elinvar.plan.ownership import owners
from elinvar.run import settings
from elinvar.run.forkserver import warm_up
from elinvar.run.stop import Request
from elinvar.spec.data import Bytes, Data
from elinvar.spec.experiment import Batch, Experiment, Length
from elinvar.spec.model import Llama, parameter_shapes
from elinvar.spec.numerics import Numerics
from elinvar.spec.optimizer import AdamW
from elinvar.spec.read import resolve
from elinvar.spec.schedule import Cosine
from elinvar.train.gradient import Window
from elinvar.train.state import RunState, digest_state, fresh_state
from elinvar.train.update import totals, update

MACHINE = Machine(name="test", cores=4, memory_bytes=8 * 2**30)
CPU = torch.device("cpu")
WORLD = World(rank=0, size=1, device=CPU)


def write_text(path, num_words=5000):
    """About 30 KB of words that a model can learn something about."""
    words = ("the", "order", "of", "sums", "is", "fixed", "and", "a", "rank", "knows", "nothing")
    chosen = (words[(i * i + i // 3) % len(words)] for i in range(num_words))
    path.write_text("".join(word + ("\n" if i % 9 == 8 else " ") for i, word in enumerate(chosen)))
    return path


def small_experiment(
    folder, *, microbatches=5, sequences=1, tokens=16, steps=6, seed=3, dropout=0.0, hidden=16, **more
):
    """A resolved experiment on a text in `folder`; `more` replaces parts of the experiment."""
    source = Path(folder) / "text.txt"
    if not source.exists():
        write_text(source)
    experiment = Experiment(
        seed=seed,
        length=Length(steps=steps),
        model=Llama(
            vocab_size=257,
            hidden_size=hidden,
            num_layers=2,
            num_heads=2,
            num_kv_heads=1,
            intermediate_size=2 * hidden,
            dropout=dropout,
        ),
        data=Data(source=str(source), tokenizer=Bytes(), held_out=7),
        batch=Batch(
            microbatches=microbatches, sequences_per_microbatch=sequences, tokens_per_sequence=tokens
        ),
        optimizer=more.pop("optimizer", AdamW(lr=1e-2, max_grad_norm=0.5)),
        schedule=more.pop("schedule", Cosine(warmup_steps=2, decay_steps=20)),
        numerics=more.pop("numerics", Numerics(attention="explicit" if dropout else "sdpa")),
    )
    assert not more
    return resolve(experiment, folder)


@contextmanager
def settings_of(numerics):
    """The process-wide switches as a rank sets them; as they were before after that."""
    before = (
        torch.get_num_threads(),
        torch.get_deterministic_debug_mode(),
        deterministic.fill_uninitialized_memory,
        torch.get_float32_matmul_precision(),
    )
    settings.apply(numerics)
    try:
        yield
    finally:
        torch.set_num_threads(before[0])
        torch.set_deterministic_debug_mode(before[1])
        deterministic.fill_uninitialized_memory = before[2]
        torch.set_float32_matmul_precision(before[3])


class Quiet:
    """Nobody asks a run to stop."""

    def heard(self):
        return Request.NONE


@dataclass
class Rank:
    """The parts of one rank, as `run` puts them together, without folder and record."""

    experiment: Experiment
    feed: Feed
    model: Transformer
    replicas: Replicas
    state: RunState

    def window(self, step):
        """This rank's leaves of `step`, computed."""
        batch = self.experiment.batch
        found = Window(batch.microbatches)
        for leaf in self.replicas.owned[self.replicas.world.rank]:
            found.compute(self.model, self.feed.training(step, leaf), self.experiment.objective)
        return found

    def take(self, window=None):
        """One step; returns its report."""
        window = window if window is not None else self.window(self.state.step + 1)
        agreed = totals(window, self.replicas, self.experiment.batch.sequences_per_microbatch, [0])
        self.state, report = update(self.state, window, agreed, self.replicas, self.experiment)
        return report

    @property
    def digest(self):
        return digest_state(self.state, self.replicas)


def rank_of(experiment, world=WORLD, *, sharding=0, ownership="contiguous"):
    """The rank `world.rank` of `experiment` before step 1."""
    feed = Feed(open_store(experiment.data), experiment)
    model = build(experiment.model, experiment.numerics, experiment.seed)
    replicas = Replicas(
        world,
        Layout(parameter_shapes(experiment.model), world.size),
        owners(experiment.batch.microbatches, world.size, ownership),
        experiment.batch.microbatches,
        sharding,
    )
    state = fresh_state(dict(model.named_parameters()), replicas.held, feed.start())
    return Rank(experiment, feed, model, replicas, state)


def tensors_of(state):
    """Copies of all tensors of a state, in canonical order."""
    return [tensor.clone() for tensor in (*state.parameters.values(), *state.exp_avg, *state.exp_avg_sq)]


def on_ranks(size, work, *arguments, timeout_s=60):
    """Call `work(world, *arguments)` on `size` gloo ranks, each a process; returns their results in rank order.

    `work` is a function of a module that other processes can import by name. What a rank raises
    is raised here.
    """
    warm_up()
    context = multiprocessing.get_context("forkserver")
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    pipes, processes = [], []
    for rank in range(size):
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_rank, args=(theirs, rank, size, store.port, work, arguments))
        process.start()
        theirs.close()
        pipes.append(ours)
        processes.append(process)
    try:
        answers = []
        for rank, pipe in enumerate(pipes):
            if not pipe.poll(timeout_s):
                raise TimeoutError(f"rank {rank} says nothing for {timeout_s} s")
            answers.append(pipe.recv())
    finally:
        for process in processes:
            process.join(5)
            if process.is_alive():
                process.kill()
                process.join()
            process.close()
        for pipe in pipes:
            pipe.close()
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
    return answers


def _rank(sink, rank, size, port, work, arguments):
    from elinvar.parallel.world import close_world, open_world

    try:
        settings.apply(Numerics())
        store = torch.distributed.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
        world = open_world(rank=rank, size=size, device=CPU, store=store, timeout_s=30)
        answer = work(world, *arguments)
        close_world(world)
    except Exception as error:  # noqa: BLE001 - told to the parent, which raises it
        answer = error
    sink.send(answer)


def with_sharding(whole, size, place, sharding):
    """(state, replicas) that rank `place` of `size` would have in the state of `whole`, a single rank."""
    layout = Layout(parameter_shapes(whole.experiment.model), size)
    leaves = owners(whole.replicas.num_leaves, size, "contiguous")
    world = World(rank=place, size=size, device=CPU)
    replicas = Replicas(world, layout, leaves, whole.replicas.num_leaves, sharding)
    found = {"exp_avg": {}, "exp_avg_sq": {}}
    for kind, moments in found.items():
        for piece, tensor in zip(whole.state.held, getattr(whole.state, kind), strict=True):
            moments[piece.name] = tensor
    cut = {
        kind: [moments[piece.name][piece.start : piece.stop].clone() for piece in replicas.held]
        for kind, moments in found.items()
    }
    return replace(whole.state, held=replicas.held, **cut), replicas
