import json
import math

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from elinvar.spec.check import complete, expected
from elinvar.spec.experiment import Experiment
from elinvar.spec.fields import Leaf, all_paths, run_file, walk
from elinvar.spec.read import read

TINY = msgspec.to_builtins(read("tiny").experiment)
NAMES = sorted({path.rpartition(".")[2] for path in all_paths()})
VALUES = st.one_of(
    st.integers(-3, 2000),
    st.sampled_from([2**63 - 1, 2**31]),
    st.floats(allow_nan=False, allow_infinity=False),
    st.booleans(),
    st.sampled_from(["", "a", "auto", "sdpa", "cosine", "constant", "bytes", "bpe", "adamw", "llama", "7"]),
    st.builds(dict),
    st.builds(list),
)


def checked(tree):
    problems = []
    table = run_file().members[None].fields["experiment"]
    return complete(table, tree, "experiment", lambda path: path, problems), problems


def tables_of(tree):
    yield tree
    for value in tree.values():
        if isinstance(value, dict):
            yield from tables_of(value)


@given(st.data())
def test_it_takes_exactly_what_msgspec_takes(data):
    """msgspec checks the same structs strictly, but stops at the first problem: an independent reference."""
    tree = json.loads(json.dumps(TINY))
    for _ in range(data.draw(st.integers(1, 2))):
        table = data.draw(st.sampled_from(list(tables_of(tree))))
        name = data.draw(st.sampled_from([*table, *NAMES]))
        if data.draw(st.booleans()):
            table[name] = data.draw(VALUES)
        elif name != "kind":  # an absent kind is ours to decide
            table.pop(name, None)
    filled, problems = checked(tree)
    try:
        value = msgspec.convert(tree, Experiment)
    except msgspec.ValidationError:
        assert problems, tree
    else:
        assert not problems, (problems, tree)
        assert msgspec.convert(filled, Experiment) == value
        assert msgspec.to_builtins(value) == {**filled}


def test_every_number_that_is_not_finite_and_every_integer_beyond_64_bits_is_refused():
    for path, field in walk(run_file(), ()):
        if not isinstance(field, Leaf) or not path.startswith("experiment.optimizer."):
            continue
        for bad in (math.nan, math.inf, -math.inf, 2**63, 10**400):
            tree = json.loads(json.dumps(TINY))
            tree["optimizer"][path.rpartition(".")[2]] = bad
            _, problems = checked(tree)
            assert len(problems) == 1, (path, bad)


def test_negative_zero_becomes_zero_and_integers_floats():
    tree = json.loads(json.dumps(TINY))
    tree["optimizer"].update(weight_decay=-0.0, eps=1, lr=0)
    filled, problems = checked(tree)
    assert problems == []
    assert math.copysign(1, filled["optimizer"]["weight_decay"]) == 1
    assert type(filled["optimizer"]["eps"]) is type(filled["optimizer"]["lr"]) is float


def test_all_problems_are_found_not_only_the_first():
    tree = {
        "seed": -1,
        "model": 3,
        "batch": {},
        "x": 1,
        "optimizer": {"kind": "sgd"},
        "schedule": {"kind": "cosin"},
    }
    _, problems = checked(tree)
    text = [problem.what for problem in problems]
    assert text == [
        "no such key: experiment.x",
        "experiment.seed cannot be -1",
        "table experiment.length is missing",
        "experiment.model is a table",
        "experiment.batch.microbatches is missing",
        "experiment.batch.sequences_per_microbatch is missing",
        "experiment.batch.tokens_per_sequence is missing",
        'experiment.optimizer.kind cannot be "sgd"',
        'experiment.schedule.kind cannot be "cosin"',
    ]


def test_what_is_expected_is_said_in_words():
    leaves = {path: field for path, field in walk(run_file(), ()) if isinstance(field, Leaf)}
    said = {
        "execution.ranks": 'an integer ≥ 1 or "auto"',
        "execution.input.workers": "an integer ≥ 0 and ≤ 256",
        "experiment.model.dropout": "a finite number ≥ 0 and < 1",
        "experiment.model.tie_embeddings": "true or false",
        "experiment.schedule.decay_steps": "an integer ≥ 1",
        "execution.sharding": "one of 0, 1",
        "experiment.optimizer.kind": '"adamw"',
    }
    assert {path: expected(leaves[path]) for path in said} == said
