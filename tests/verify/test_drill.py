"""How a case is judged: by digests and by samples, on evidence that is wrong in one place."""

from dataclasses import replace
from itertools import product

import pytest

from elinvar.data.feed import Feed
from elinvar.data.store import open_store
from elinvar.errors import RunFailed
from elinvar.record.folder import RunFolder
from elinvar.spec.execution import Execution
from elinvar.spec.experiment import Length
from elinvar.verify import drill as module
from elinvar.verify.case import EVERY, Case, all_cases, default_cases, execution_of, given_cases, kill_points
from elinvar.verify.compare import Evidence, evidence, first_difference
from elinvar.verify.drill import Drill, shortened
from experiments import MACHINE, small_experiment

STEPS = 5


@pytest.fixture(scope="module")
def drill(tmp_path_factory):
    """A drill that has run its reference, one rank."""
    place = tmp_path_factory.mktemp("drill")
    experiment = small_experiment(place, steps=STEPS)
    feed = Feed(open_store(experiment.data), experiment)
    found = Drill(experiment=experiment, machine=MACHINE, feed=feed, steps=STEPS, workplace=place)
    first = found.run(Case(name="1 rank", execution=execution_of(1)))
    assert (first.relation, first.expected, first.ok) == ("same bits", "reference", True)
    return found


@pytest.mark.drill
def test_another_execution_is_the_same_and_a_killed_one_too(drill):
    killed = Case(
        name="killed",
        execution=execution_of(2, saves=True),
        killed_at=2,
        resumed=execution_of(3, 1, ownership="round_robin"),
    )
    for case in (Case(name="2 ranks", execution=execution_of(2, 1)), killed):
        found = drill.run(case)
        assert (found.relation, found.expected, found.ok, found.message) == (
            "same bits",
            "same bits",
            True,
            "",
        )
        assert found.tokens == STEPS * drill.experiment.batch.tokens
        assert found.digests[STEPS] == drill.reference.digests[STEPS]


def test_a_changed_digest_is_a_difference_with_its_step(drill):
    other = dict(drill.reference.digests)
    other[STEPS] = "0" * 64
    found = replace(drill.reference, digests=other)
    assert drill._relation(found, drill.reference_folder) == ("different", f"first differs at step {STEPS}")
    assert first_difference(drill.reference, found) == STEPS
    assert first_difference(drill.reference, replace(found, digests={3: "0" * 64})) is None


def test_tensors_that_differ_are_named(drill, monkeypatch):
    monkeypatch.setattr(module, "differing_tensors", lambda *_: ["parameter/a", "parameter/b", "exp_avg/a"])
    found = replace(drill.reference, digests={STEPS: "0" * 64})
    _, message = drill._relation(found, drill.reference_folder)
    assert message == f"first differs at step {STEPS}: parameter/a and 2 more tensors"


@pytest.mark.drill
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"digests": {STEPS: "0" * 64}}, f"first differs at step {STEPS}"),
        ({"skipped": 1}, "other samples in steps []"),
        ({"repeated": 2}, "other samples in steps []"),
        ({"wrong_steps": (2,)}, "other samples in steps [2]"),
        ({"digests": {}}, ""),  # nothing to compare is no proof
    ],
)
def test_a_case_whose_evidence_is_wrong_fails(drill, monkeypatch, change, words):
    monkeypatch.setattr(module, "evidence", lambda *_: replace(drill.reference, **change))
    found = drill.run(Case(name="1 rank", execution=execution_of(1)))
    assert not found.ok
    assert words in found.message


def test_a_rank_that_was_not_killed_is_no_proof(drill, monkeypatch):
    monkeypatch.setattr(Drill, "_train", lambda *_: None)
    with pytest.raises(RunFailed, match="rank 1 was to be killed at step 2, and was not"):
        drill.run(Case(name="killed", execution=execution_of(2), killed_at=2, resumed=execution_of(1)))


def test_evidence_reads_what_a_run_recorded(drill):
    found = evidence(drill.reference_folder, drill.feed, STEPS)
    assert found == drill.reference
    assert found.digests.keys() == {STEPS}
    assert (found.skipped, found.repeated, found.wrong_steps) == (0, 0, ())
    longer = evidence(drill.reference_folder, drill.feed, STEPS + 1)
    assert longer.skipped == drill.experiment.batch.sequences
    assert isinstance(found, Evidence)


def test_what_a_run_recorded_is_compared_as_far_as_it_promises_the_same(drill):
    run = drill.reference_folder
    assert drill._comparable_steps(run) == STEPS

    class Forked(RunFolder):
        def lineage(self):
            return "a parent"

    assert drill._comparable_steps(Forked(run.path)) == 0
    assert drill.recorded(Forked(run.path)) is None


def test_the_default_cases_cover_what_is_promised():
    cases = default_cases(20, 8)
    lives = [life for case in cases for life in (case.execution, case.resumed) if life is not None]
    assert {(life.ranks, life.sharding) for life in lives} == set(product((1, 2, 3, 4), (0, 1)))
    assert {(life.sharding, life.input.workers) for life in lives} == set(product((0, 1), (0, 3)))
    assert {life.ownership for life in lives} == {"contiguous", "round_robin"}
    killed = [case for case in cases if case.killed_at]
    assert [case.killed_at for case in killed] == [8, 17]
    assert all(case.resumed.ranks != case.execution.ranks for case in killed)
    assert all(case.execution.checkpoint.every == EVERY for case in killed)
    assert cases[0].execution == execution_of(1)
    assert any("then 3 ranks (3+3+2), ZeRO-1" in case.name for case in cases)


def test_all_cases_are_the_whole_grid_and_the_kills():
    cases = all_cases(20, 8)
    grid = {
        (case.execution.ranks, case.execution.sharding, case.execution.input.workers)
        for case in cases
        if not case.killed_at
    }
    assert len(grid) == 16
    assert len(cases) == 18
    assert len({case.name for case in cases}) == 18


@pytest.mark.parametrize("steps", [1, 2, 3, 5, 6, 20, 21, 100])
def test_kill_points_lie_inside_and_off_the_generations_where_there_are_any(steps):
    first, second = kill_points(steps)
    assert 1 <= first <= second <= steps
    if steps >= 2 * EVERY:
        assert first > EVERY
        assert (second - 1) % EVERY == 0 or second % EVERY != 0


def test_given_cases_are_compared_with_one_rank():
    cases = given_cases([("mine", Execution(ranks=2))])
    assert [case.name for case in cases] == ["1 rank, ZeRO-0", "mine"]
    assert cases[1].execution.record.digest_every == EVERY


def test_a_shortened_experiment_is_the_same_experiment(drill):
    assert shortened(drill.experiment, 3).length == Length(steps=3)
    assert shortened(drill.experiment, 3).schedule == drill.experiment.schedule
