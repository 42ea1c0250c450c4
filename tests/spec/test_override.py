import pytest
from hypothesis import given
from hypothesis import strategies as st

from elinvar.errors import InvalidInput
from elinvar.spec.fields import all_paths
from elinvar.spec.override import parse_overrides
from elinvar.spec.read import read


def parsed(*texts):
    problems = []
    overrides = parse_overrides(texts, problems)
    assert problems == []
    return [(".".join(override.path), override.value) for override in overrides]


def refused(*overrides):
    with pytest.raises(InvalidInput) as caught:
        read("tiny", overrides)
    return str(caught.value)


@pytest.mark.parametrize(
    "text, path, value",
    [
        ("experiment.optimizer.lr=5e-4", "experiment.optimizer.lr", 5e-4),
        ("optimizer.lr=1", "experiment.optimizer.lr", 1),
        ("lr = 1_0.5", "experiment.optimizer.lr", 10.5),
        ("schedule.kind=constant", "experiment.schedule.kind", "constant"),
        ('schedule.kind="constant"', "experiment.schedule.kind", "constant"),
        ("ranks=auto", "execution.ranks", "auto"),
        ("ranks=4", "execution.ranks", 4),
        ("data.source=corpus.txt", "experiment.data.source", "corpus.txt"),
        ("data.source=a b#c=d.txt", "experiment.data.source", "a b#c=d.txt"),
        ("data.source='a.txt'", "experiment.data.source", "a.txt"),
        ('data.source="123"', "experiment.data.source", "123"),
        ("data.source=/tmp/x y.jsonl", "experiment.data.source", "/tmp/x y.jsonl"),
        ("deterministic=false", "experiment.numerics.deterministic", False),
        ('experiment.schedule={kind="constant"}', "experiment.schedule", {"kind": "constant"}),
        ("\"experiment\".'seed'=3", "experiment.seed", 3),
        ("machine=cpu-2", "machine", "cpu-2"),
    ],
)
def test_an_override_is_a_toml_assignment(text, path, value):
    ((got_path, got_value),) = parsed(text)
    assert (got_path, got_value) == (path, value)
    assert type(got_value) is type(value)


@pytest.mark.parametrize("path", all_paths())
def test_a_full_path_is_always_accepted_and_a_suffix_exactly_where_it_fits_once(path):
    names = path.split(".")
    for start in range(len(names)):
        suffix = ".".join(names[start:])
        fitting = [known for known in all_paths() if f".{known}".endswith(f".{suffix}")]
        problems = []
        parse_overrides([f"{suffix}={{}}"], problems)
        if suffix == path or len(fitting) == 1:
            assert [problem for problem in problems if "fits more" in problem.what] == []
        else:
            (problem,) = problems
            assert "fits more than one key" in problem.what
            assert all(known in problem.details[0] for known in fitting)


@pytest.mark.parametrize(
    "text", ["data.source=123", "data.source=true", "data.source=1.5", "data.source=2024-01-01"]
)
def test_a_toml_value_of_another_type_is_no_string(text):
    message = refused(text)
    assert "experiment.data.source is a string" in message
    assert f"experiment.data.source='\"{text.split('=')[1]}\"'" in message


@pytest.mark.parametrize(
    "text, words",
    [
        ("steps=1.5", ["experiment.length.steps cannot be 1.5", "got 1.5, a float", "an integer ≥ 1"]),
        ("steps=true", ["got true, a boolean"]),
        ('steps="7"', ['got "7", a string']),
        ("steps=seven", ["seven is no TOML value"]),
        ("steps=99999999999999999999", ["cannot be 99999999999999999999"]),
        ("steps=0", ["an integer ≥ 1"]),
        (f"steps=0x{'f' * 5000}", ["cannot be an integer of 20000 bits"]),
        (f"steps={'9' * 5000}", ["is no TOML value"]),
        (f"{'a.' * 3000}a=1", ["no such key"]),
        ("lr=nan", ["a finite number ≥ 0"]),
        ("lr=-inf", ["a finite number ≥ 0"]),
        ("lr=-1e-3", ["a finite number ≥ 0"]),
        ("lr=1e400", ["cannot be inf"]),
        ("lr=false", ["got false, a boolean"]),
        ("deterministic=1", ["true or false"]),
        ("sharding=true", ["one of 0, 1"]),
        ("sharding=1.0", ["one of 0, 1"]),
        ("ranks=outo", ['cannot be "outo"', 'the nearest is "auto"']),
        ("precision=bf61", ['the nearest is "bf16"']),
        ("schedule.kind=cosinus", ['the nearest is "cosine"']),
        ("optimizer.wieght_decay=0.2", ["the nearest is experiment.optimizer.weight_decay"]),
        ("wieght_decay=0.2", ["the nearest is experiment.optimizer.weight_decay"]),
        ("experiment.lr=0.2", ["a key of this name exists: experiment.optimizer.lr"]),
        ("sheduler.kind=constant", ["no such key: sheduler.kind"]),
        ("vocab_size=3", ["experiment.model.vocab_size, experiment.data.tokenizer.vocab_size"]),
        ("lr", ["an override is an assignment", "path=value"]),
        ("lr=", ["is given no value"]),
        ("=3", ["no key path"]),
        ("a b=3", ["no key path"]),
        ("lr=1\nseed=2", ["is no TOML value", "override lr=1\\nseed=2"]),
        ("schedule=constant", ["choose a kind with experiment.schedule.kind=constant"]),
        ("schedule={kind=constant}", ["the shell needs quotes"]),
        ('experiment.optimizer={kind="adamw"}', ["experiment.optimizer.lr is missing"]),
        ("experiment.batch=3", ["experiment.batch is a table"]),
        ("data.source=a\tb", ["without control characters"]),
        ("data.source=a\udcffb", ["without control characters"]),
    ],
)
def test_a_wrong_override_is_refused_with_its_text_and_a_way_out(text, words):
    message = refused(text)
    for word in [*words, f"override {text.split('=')[0][:150]}"]:
        assert word in message


@pytest.mark.parametrize(
    "texts",
    [
        ("lr=1", "experiment.optimizer.lr=1"),
        ("experiment.schedule={kind='constant'}", "warmup_steps=3"),
        ("warmup_steps=3", "experiment.schedule={kind='constant'}"),
    ],
)
def test_a_key_set_twice_names_both(texts):
    message = refused(*texts)
    assert "is set twice" in message
    for text in texts:
        assert f"override {text}" in message


def test_problems_of_overrides_and_values_come_on_one_page_up_to_five():
    message = refused(
        "steps=1.5", "wieght=3", "lr=nan", "seed=-1", "hidden_size=true", "num_layers=0", "threads=0"
    )
    assert message.startswith("7 problems in the input")
    assert message.count("\n  1. ") == message.count("\n  5. ") == 1
    assert "6. " not in message
    assert message.endswith("and 2 more")


@given(st.text(max_size=30))
def test_any_text_is_read_or_refused(text):
    problems = []
    overrides = parse_overrides([text], problems)
    assert bool(problems) != bool(overrides)


@given(st.permutations(["lr=1", "schedule.kind=constant", "warmup_steps=3", "ranks=3", "data.held_out=3"]))
def test_the_order_of_overrides_does_not_matter(texts):
    reading = read("tiny", texts)
    assert (reading.experiment, reading.execution) == _reference()


def _reference():
    reading = read("tiny", ["lr=1", "schedule.kind=constant", "warmup_steps=3", "ranks=3", "data.held_out=3"])
    return reading.experiment, reading.execution
