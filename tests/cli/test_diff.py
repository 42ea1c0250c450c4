import json
from contextlib import closing

import msgspec
import pytest

from elinvar.cli.main import run
from elinvar.record.attempt import AttemptStart
from elinvar.record.folder import RunFolder
from elinvar.record.lineage import Lineage
from elinvar.record.metrics import MetricsRow
from elinvar.spec.canonical import experiment_digest
from elinvar.spec.execution import Execution
from elinvar.spec.read import experiment_json, read


def recorded(path, digests, *, cpu="a", overrides=(), attempt=1, lineage=None):
    """A run folder whose steps have these update digests."""
    made = RunFolder.create(path, experiment_json(read("tiny", overrides).experiment), lineage)
    journals = made.journals()
    journals.attempts.append(
        AttemptStart(
            attempt=attempt,
            time_s=0.0,
            from_step=0,
            execution=msgspec.to_builtins(Execution(ranks=2)),
            machine={},
            fingerprint={"cpu": cpu},
            versions={},
        )
    )
    for step, digest in digests.items():
        journals.metrics.append(
            MetricsRow(
                attempt=attempt,
                step=step,
                loss=1.0,
                denominator=1,
                tokens=1,
                grad_norm=1.0,
                lr=1.0,
                update_digest=digest,
            )
        )
    journals.close()
    return str(path)


def compared(capsys, *arguments, code=0):
    assert run(["diff", *arguments, "--json"]) == code
    out, err = capsys.readouterr()
    return json.loads(out), err


@pytest.mark.parametrize(
    "overrides, relation, side",
    [
        (["execution.ranks=3"], "same bits", "execution"),
        (["length.steps=400", "decay_steps=300"], "same bits", "experiment"),
        (["threads=2"], "same math", "experiment"),
        (["microbatches=16", "sequences_per_microbatch=1"], "same math", "experiment"),
        (["lr=1"], "different experiment", "experiment"),
        (["microbatches=16"], "different experiment", "experiment"),
    ],
)
def test_the_relation_and_the_side_of_each_change(capsys, tmp_path, overrides, relation, side):
    (tmp_path / "a.toml").write_text('base = "tiny"\n')
    assert run(["show", "tiny", *overrides]) == 0
    (tmp_path / "b.toml").write_text(capsys.readouterr().out)
    tree, _ = compared(capsys, str(tmp_path / "a.toml"), str(tmp_path / "b.toml"))
    assert tree["relation"] == relation
    assert {change["side"] for change in tree["changed"]} == {side}
    assert {change["path"].split(".")[-1] for change in tree["changed"]} <= {
        override.split("=")[0].split(".")[-1] for override in overrides
    }
    assert tree["updates"] is None


def test_equal_folders_are_the_same_bits_and_their_digests_are_compared(capsys, tmp_path):
    a = recorded(tmp_path / "a", {10: "d1", 20: "d2", 25: "x"})
    b = recorded(tmp_path / "b", {10: "d1", 15: None, 20: "d2"})
    tree, _ = compared(capsys, a, b)
    assert tree["relation"] == "same bits"
    assert tree["updates"] == {"common_steps": [10, 20], "first_unequal": None}
    assert run(["diff", a, b]) == 0
    assert "equal at 2 common steps, the last is 20" in capsys.readouterr().out


def test_a_promise_that_was_not_kept_is_a_mismatch(capsys, tmp_path):
    a = recorded(tmp_path / "a", {10: "d1", 20: "d2", 30: "d3"})
    b = recorded(tmp_path / "b", {10: "d1", 20: "e2", 30: "e3"})
    tree, err = compared(capsys, a, b, code=4)
    assert tree["updates"]["first_unequal"] == 20
    assert "promise the same bits and differ at step 20" in err


def test_other_processors_promise_only_the_same_math(capsys, tmp_path):
    a = recorded(tmp_path / "a", {10: "d1"})
    b = recorded(tmp_path / "b", {10: "e1"}, cpu="b")
    tree, _ = compared(capsys, a, b)
    assert tree["relation"] == "same math"
    assert tree["updates"]["first_unequal"] == 10


def launched(path, number, from_step, *, cpu="a", accepted=""):
    """One more attempt of a recorded run."""
    with closing(RunFolder.open(path).journals()) as journals:
        journals.attempts.append(
            AttemptStart(
                attempt=number, time_s=0.0, from_step=from_step, execution={}, machine={},
                fingerprint={"cpu": cpu}, versions={}, accepted=accepted,
            )
        )  # fmt: skip


def test_an_accepted_change_shows_also_where_a_later_attempt_went_back(capsys, tmp_path):
    a = recorded(tmp_path / "a", {10: "d1", 20: "d2", 30: "x3"})
    b = recorded(tmp_path / "b", {10: "d1", 20: "d2", 30: "d3"})
    launched(tmp_path / "a", 2, 20, cpu="b", accepted="same math")
    launched(tmp_path / "a", 3, 25, cpu="a", accepted="same math")
    tree, _ = compared(capsys, a, b)
    assert tree["relation"] == "same math"
    assert tree["because"] == [
        f"{a} went on as same math after step 20: cpu: a and b",
        f"{a} went on as same math after step 25: cpu: b and a",
    ]
    assert tree["updates"]["first_unequal"] == 30
    # What it computed before that is promised still.
    c = recorded(tmp_path / "c", {10: "d1", 20: "z2", 30: "z3"})
    _, err = compared(capsys, a, c, code=4)
    assert "differ at step 20" in err


def test_what_an_accepted_attempt_computed_and_a_later_one_left_behind_moves_nothing(capsys, tmp_path):
    a = recorded(tmp_path / "a", {10: "d1", 20: "d2"})
    launched(tmp_path / "a", 2, 20, cpu="b", accepted="same math")
    launched(tmp_path / "a", 3, 20)
    tree, _ = compared(capsys, a, recorded(tmp_path / "b", {10: "d1", 20: "d2"}))
    assert tree["relation"] == "same bits"


def test_an_accepted_cut_has_no_part_in_a_fingerprint_and_shows(capsys, tmp_path):
    a = recorded(tmp_path / "a", {10: "d1"})
    launched(tmp_path / "a", 2, 10, accepted="same math")
    tree, _ = compared(capsys, a, a)
    assert tree["relation"] == "same math"
    assert "the cut into microbatches" in tree["because"][0]


def test_a_fork_names_its_parent_and_promises_only_what_began_alike(capsys, tmp_path):
    a = recorded(tmp_path / "a", {10: "d1", 20: "d2"})
    own = experiment_digest(read("tiny").experiment)

    def fork(name, digest):
        lineage = Lineage(run=a, step=10, generation="00000010-abc-def", experiment_digest=digest)
        return recorded(tmp_path / name, {20: "e2"}, lineage=lineage)

    # A fork that changed nothing is as the run itself: its bits are promised.
    tree, _ = compared(capsys, a, fork("b", own), code=4)
    assert tree["lineage"] == [None, f"{tmp_path / 'b'} is a fork of the other run at step 10"]
    # One that began with the state of another experiment is not a run of its experiment from step 0.
    tree, _ = compared(capsys, a, fork("c", "00" * 32))
    assert tree["relation"] == "different experiment"
    run(["diff", "tiny", str(tmp_path / "c")])
    assert f"lineage: {tmp_path / 'c'} is a fork of {a} at step 10\n" in capsys.readouterr().out


def test_what_is_neither_says_that_a_folder_may_stand_there(capsys):
    assert run(["diff", "tiny", "nope"]) == 2
    assert "allowed: a TOML file, a preset (small, tiny), or a run folder" in capsys.readouterr().err


def test_a_folder_and_a_file_can_be_compared(capsys, tmp_path):
    a = recorded(tmp_path / "a", {10: "d1"}, overrides=["lr=1"])
    tree, _ = compared(capsys, a, "tiny")
    assert {change["path"] for change in tree["changed"] if change["side"] == "experiment"} == {
        "experiment.optimizer.lr"
    }
    assert run(["diff", a, "tiny"]) == 0
    out = capsys.readouterr().out
    assert "experiment.optimizer.lr" in out
    assert "relation: different experiment" in out
