import json

import msgspec
import pytest

from elinvar.cli.main import run
from elinvar.record.attempt import AttemptStart
from elinvar.record.folder import RunFolder
from elinvar.record.metrics import MetricsRow
from elinvar.spec.execution import Execution
from elinvar.spec.read import experiment_json, read


def recorded(path, digests, *, cpu="a", overrides=(), attempt=1):
    """A run folder whose steps have these update digests."""
    made = RunFolder.create(path, experiment_json(read("tiny", overrides).experiment))
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
        (["length.steps=300", "decay_steps=200"], "same bits", "experiment"),
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
    assert "equal at all 2 common steps, up to 20" in capsys.readouterr().out


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
