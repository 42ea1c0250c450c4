"""Laws over the life of a run: killed, stopped, shrunk, grown, skipping steps; one state for each step.

The law of single fields is `test_execution.py`. Ranks are killed by SIGKILL and runs go on through the
same door as any user's.
"""

from itertools import pairwise

import pytest
from msgspec import structs

from elinvar.checkpoint.check import check_generation
from elinvar.data.feed import Feed
from elinvar.data.store import open_store
from elinvar.errors import RunFailed
from elinvar.record.folder import RunFolder
from elinvar.record.ledger import audit
from elinvar.record.metrics import effective
from elinvar.run.job import Kill
from elinvar.run.launch import launch
from elinvar.run.prepare import Asked, prepare
from elinvar.run.rank import run_rank
from elinvar.spec.execution import Checkpoint, Execution, Input, Record
from elinvar.spec.optimizer import AdamW
from experiments import MACHINE, Quiet, settings_of, small_experiment

STEPS = 7


def execution(ranks, sharding=0, *, ownership="auto", workers=0, every=2, digest_every=1):
    return Execution(
        ranks=ranks,
        sharding=sharding,
        ownership=ownership,
        device="cpu",
        input=Input(workers=workers),
        checkpoint=Checkpoint(every=every, keep=2),
        record=Record(digest_every=digest_every, evaluate_every=3),
    )


def go_on(experiment, path, chosen, *, until=None, kill=None, at=None):
    """One attempt: in this process for one rank that nobody kills, else on launched ranks."""
    preparation = prepare(
        Asked(
            name="law",
            experiment=experiment,
            execution=chosen,
            machine=MACHINE,
            folder=path,
            until=until,
            at=at,
            kill=kill,
            quiet=True,
        )
    )
    outcome = None
    try:
        if chosen.ranks == 1 and kill is None:
            with settings_of(experiment.numerics):
                outcome = run_rank(preparation.job, rank=0, size=1, local_rank=0, store=None, source=Quiet())
        else:
            outcome = launch(preparation.job)
    finally:
        preparation.end(outcome)
    return outcome


def killed(experiment, path, chosen, step, rank):
    with pytest.raises(RunFailed, match=f"rank {rank} was killed by SIGKILL"):
        go_on(experiment, path, chosen, kill=Kill(rank=rank, step=step))


def learned(path):
    """Of each step what its last attempt learned; digests where there are any."""
    rows = effective(RunFolder.open(path).metrics()[0])
    return {row.step: (row.loss, row.grad_norm, row.lr, row.denominator, row.update_digest) for row in rows}


def assert_same_life(experiment, path, reference):
    """Every step learned what the reference learned, from every sample once, and its generations are sound."""
    found = learned(path)
    assert found.keys() == reference.keys()
    for step, row in found.items():
        assert row[:4] == reference[step][:4], f"step {step}"
        assert row[4] in (reference[step][4], None), f"step {step}"
    assert found[STEPS][4] == reference[STEPS][4]
    folder = RunFolder.open(path)
    feed = Feed(open_store(experiment.data), experiment)
    seen = audit(
        folder.ledger()[0],
        STEPS,
        experiment.batch.sequences,
        lambda start, stop: feed.order.indices(start, stop).tolist(),
    )
    assert not seen.skipped
    assert not seen.repeated
    assert not seen.beyond
    assert not seen.wrong_steps
    for generation in folder.generations():
        assert check_generation(generation) == []
        assert generation.update_digest == reference[generation.step][4]


@pytest.fixture(scope="module", params=[(5, 0.1), (8, 0.0)], ids=["5 leaves, dropout", "8 leaves"])
def life(request, tmp_path_factory):
    """An experiment, and what one rank that nothing happens to learns of it."""
    num_leaves, dropout = request.param
    place = tmp_path_factory.mktemp("life")
    experiment = small_experiment(place, microbatches=num_leaves, dropout=dropout, steps=STEPS)
    go_on(experiment, place / "reference", execution(1))
    reference = learned(place / "reference")
    assert len({row[4] for row in reference.values()}) == STEPS
    return experiment, place, reference


LIVES = {
    "four ranks, ZeRO-1, leaves in turn": [(execution(4, 1, ownership="round_robin"), STEPS)],
    "three ranks, no generation but the last": [(execution(3, every=0, digest_every=0), STEPS)],
    "killed past a generation, fewer ranks": [(execution(3, 1), -4), (execution(2), STEPS)],
    "killed at a generation's next step, more ranks": [
        (execution(2, ownership="round_robin"), -5),
        (execution(4, 1, workers=1), STEPS),
    ],
    "killed before the first generation, one rank": [(execution(3, every=4), -3), (execution(1, 1), STEPS)],
    "shrunk and grown": [
        (execution(1), 2),
        (execution(3, 1), 3),
        (execution(2, every=3), 5),
        (execution(3, ownership="round_robin"), -7),
        (execution(1, every=0), STEPS),
    ],
}


@pytest.mark.drill
@pytest.mark.parametrize("name", LIVES)
def test_whatever_happens_to_a_run_it_learns_the_same(life, name):
    """`LIVES`: attempts, each an execution and the step that it is stopped after, or (negative) killed at."""
    experiment, place, reference = life
    path = place / name
    for chosen, end in LIVES[name]:
        if end < 0:
            killed(experiment, path, chosen, -end, chosen.ranks - 1)
        else:
            assert go_on(experiment, path, chosen, until=end).step == end
    assert_same_life(experiment, path, reference)
    attempts = RunFolder.open(path).attempts()
    assert len(attempts) == len(LIVES[name])
    for earlier, later in pairwise(attempts):
        assert later.start.from_step <= earlier.end.to_step


@pytest.mark.drill
def test_going_on_from_an_older_generation_learns_the_same(life):
    experiment, place, reference = life
    path = place / "older"
    go_on(experiment, path, execution(1), until=5)
    go_on(experiment, path, execution(2, 1), at=4)
    assert_same_life(experiment, path, reference)


@pytest.mark.drill
def test_steps_are_skipped_alike_and_leave_nulls(tmp_path):
    """A learning rate without measure: every rank count skips the same steps and keeps the same state."""
    experiment = small_experiment(tmp_path, steps=STEPS, optimizer=AdamW(lr=1e22, max_grad_norm=0))
    lives = {"1": execution(1), "3": execution(3), "3 ZeRO-1": execution(3, 1, ownership="round_robin")}
    for name, chosen in lives.items():
        go_on(experiment, tmp_path / name, chosen)
    found = {name: learned(tmp_path / name) for name in lives}
    assert found["3"] == found["3 ZeRO-1"] == found["1"]
    rows = effective(RunFolder.open(tmp_path / "3").metrics()[0])
    skipped = [row for row in rows if row.skipped]
    assert 0 < len(skipped) < STEPS
    assert all(row.grad_norm is None for row in skipped)
    assert "NaN" not in (tmp_path / "3" / "metrics.jsonl").read_text()
    events = [event for event in RunFolder.open(tmp_path / "3").events()[0] if event.kind == "skipped_step"]
    assert [event.step for event in events] == [row.step for row in skipped]
    assert all(len(event.data["samples"]) == 5 for event in events)


@pytest.mark.drill
@pytest.mark.parametrize("ranks", [1, 3])
def test_a_run_that_is_to_stop_does_so_on_all_ranks_and_goes_on_from_its_generation(tmp_path, ranks):
    experiment = small_experiment(tmp_path, steps=STEPS, optimizer=AdamW(lr=1e22, max_grad_norm=0))
    numerics = structs.replace(experiment.numerics, non_finite="stop")
    experiment = structs.replace(experiment, numerics=numerics)
    with pytest.raises(RunFailed, match="step 2 has non-finite gradients") as caught:
        go_on(experiment, tmp_path / "run", execution(ranks, every=1))
    assert "its samples: " in str(caught.value)
    assert [g.step for g in RunFolder.open(tmp_path / "run").generations()] == [1]
