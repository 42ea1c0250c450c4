import pytest

from elinvar.spec.canonical import experiment_digest
from elinvar.spec.explain import (
    SYNONYMS,
    Problem,
    counted,
    differences,
    nearest,
    page,
    quoted,
    refused_continuation,
    synonym,
)
from elinvar.spec.fields import all_paths
from elinvar.spec.read import read


@pytest.mark.parametrize(
    "name, candidates, wanted",
    [
        ("wieght_decay", ["lr", "weight_decay", "decay"], "weight_decay"),
        ("Weight-Decay", ["lr", "weight_decay"], "weight_decay"),
        ("bf61", ["fp32", "bf16"], "bf16"),
        ("trian", ["train", "plan"], "train"),
        ("zzz", ["lr", "seed"], None),
        ("x", [], None),
    ],
)
def test_the_nearest_name_is_a_real_one_or_none(name, candidates, wanted):
    assert nearest(name, candidates) == wanted


def test_one_problem_is_a_headline_and_many_are_counted():
    one = page([Problem("a is wrong", "run.toml:1:1", ("got 3",))])
    assert str(one) == "a is wrong\n  at run.toml:1:1\n  got 3"
    many = page([Problem(f"p{n}", f"w{n}") for n in range(8)])
    assert many.message == "8 problems in the input"
    assert many.lines[-1] == "and 3 more"
    assert len(many.lines) == 11


def test_differences_name_paths_and_both_values():
    a, b = read("tiny").experiment, read("tiny", ["schedule.kind=constant", "lr=1"]).experiment
    assert differences(a, b) == [
        ("optimizer.lr", 0.006, 1.0),
        ("schedule.kind", "cosine", "constant"),
        ("schedule.decay_steps", 300, None),
        ("schedule.final_fraction", 0.1, None),
    ]
    assert [(path, y, x) for path, x, y in differences(a, b)] == differences(b, a)
    assert differences(a, a) == []


def test_a_refused_continuation_says_what_changed_and_both_ways_on():
    a, b = read("tiny").experiment, read("tiny", ["optimizer.lr=5e-4", "steps=400"]).experiment
    text = str(refused_continuation("runs/tiny-1", a, b, 120))
    assert "experiment.optimizer.lr           run 0.006   asked 0.0005" in text
    assert "experiment.schedule.decay_steps   run 300   asked 400" in text
    assert "to go on with the run's: decay_steps=300" in text
    assert experiment_digest(a) in text and experiment_digest(b) in text
    assert "elinvar resume runs/tiny-1" in text
    assert "--fork runs/tiny-1@120" in text
    # Length alone is no difference of experiments: it is not accused.
    assert "experiment.length.steps" not in text


def test_a_change_of_numerics_is_the_same_math_and_says_how_to_go_on():
    a, b = read("tiny").experiment, read("tiny", ["threads=2"]).experiment
    typed = ["/usr/bin/elinvar", "train", "tiny", "threads=2", "--run", "a b", "--quiet"]
    text = str(refused_continuation("a b", a, b, 120, typed))
    assert text.startswith("continuing a b so gives the same math, not the same bits")
    assert "experiment.numerics.threads   run 1   asked 2" in text
    assert "elinvar train tiny threads=2 --quiet --run 'a b' --accept same-math" in text
    assert "elinvar train tiny threads=2 --quiet --fork 'a b@120' --run OTHER" in text
    # Another experiment cannot be accepted, and where nothing was saved nothing can be forked.
    other = str(
        refused_continuation("a", a, read("tiny", ["lr=1"]).experiment, 0, ["elinvar", "resume", "a"])
    )
    assert "--accept" not in other
    assert "--fork" not in other
    assert "start it anew: elinvar train RUN.toml --run OTHER" in other


def test_names_of_other_programs_lead_to_real_keys():
    assert {path for paths in SYNONYMS.values() for path in paths} <= set(all_paths())
    assert not {path.rsplit(".", 1)[-1] for path in all_paths()} & set(SYNONYMS)
    assert synonym("Learning-Rate") == "here it is experiment.optimizer.lr"
    assert synonym("lr") is None


def test_nouns_follow_their_number():
    assert [counted(n, "sum") for n in (0, 1, 2)] == ["0 sums", "1 sum", "2 sums"]
    assert counted(1_000, "leaf", "leaves") == "1,000 leaves"


def test_a_quoted_text_is_toml():
    import tomllib

    for text in ["a", 'a"b\\', "a\nb\tc\x00\x7f", "é≥", ""]:
        assert tomllib.loads(f"x = {quoted(text)}") == {"x": text}
