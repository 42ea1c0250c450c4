import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from elinvar.errors import InvalidInput
from elinvar.spec.canonical import experiment_digest
from elinvar.spec.execution import Execution
from elinvar.spec.read import read, resolve, with_overrides

RUN = """
[experiment]
seed = 3
length.steps = 10
batch = { microbatches = 4, sequences_per_microbatch = 1, tokens_per_sequence = 16 }
optimizer = { kind = "adamw", lr = 1 }

[experiment.model]
kind = "llama"
vocab_size = 512
hidden_size = 32
num_layers = 2
num_heads = 4
num_kv_heads = 2
intermediate_size = 64

[experiment.data]
source = "corpus.txt"
tokenizer = { kind = "bpe", vocab_size = 300 }

[execution]
ranks = "auto"
"""


@pytest.fixture
def run(tmp_path, corpus, monkeypatch):
    """Write a run file into a folder that the process stands in, and return its name."""
    monkeypatch.chdir(tmp_path)

    def write(text=RUN, name="run.toml"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return name

    return write


def refused(source, *overrides):
    with pytest.raises(InvalidInput) as caught:
        read(source, overrides)
    return str(caught.value)


def test_a_run_file_is_read_and_resolved(run, corpus):
    reading = read(run())
    assert reading.name == "run"
    assert reading.experiment.seed == 3
    assert reading.experiment.optimizer.lr == 1.0
    assert type(reading.experiment.optimizer.lr) is float
    assert reading.experiment.data.source == str(corpus)
    assert reading.experiment.data.format == "text"
    assert reading.execution == Execution()
    assert reading.machine is None
    assert reading.origins["experiment.seed"] == "run.toml:3:1"
    assert reading.origins["experiment.length.steps"] == "run.toml:4:8"
    assert reading.origins["experiment.optimizer.lr"] == "run.toml:6:31"
    assert reading.origins["experiment.optimizer.beta1"] == "default"
    assert reading.origins["experiment.data.digest"].startswith("resolved: ")


def test_every_leaf_of_both_values_has_an_origin():
    reading = read("tiny", ["schedule.kind=constant", "execution.input.workers=3"])
    leaves = set()

    def visit(tree, path):
        for name, value in tree.items():
            if isinstance(value, dict):
                visit(value, f"{path}.{name}")
            else:
                leaves.add(f"{path}.{name}")

    visit(msgspec.to_builtins(reading.experiment), "experiment")
    visit(msgspec.to_builtins(reading.execution), "execution")
    assert set(reading.origins) == leaves
    assert reading.origins["execution.input.workers"] == "override execution.input.workers=3"
    assert reading.origins["experiment.schedule.kind"] == "override schedule.kind=constant"


@pytest.mark.parametrize("preset", ["tiny", "small"])
def test_presets_are_what_they_say(preset):
    reading = read(preset)
    model = reading.experiment.model
    attention = 2 * model.hidden_size**2 + 2 * model.hidden_size * model.head_dim * model.num_kv_heads
    layer = attention + 3 * model.hidden_size * model.intermediate_size + 2 * model.hidden_size
    parameters = model.vocab_size * model.hidden_size + model.num_layers * layer + model.hidden_size
    low, high = {"tiny": (0.9e6, 1.0e6), "small": (9.5e6, 10.5e6)}[preset]
    assert low <= parameters <= high
    assert model.tie_embeddings
    assert reading.experiment.batch.microbatches == 8
    assert reading.execution.ranks == 2
    assert reading.name == preset


def test_paths_are_relative_to_the_file_that_writes_them(run, tmp_path):
    run("[experiment.data]\nsource = 'words.txt'\n", "deep/parent.toml")
    (tmp_path / "deep" / "words.txt").write_text("words")
    (tmp_path / "words.txt").write_text("other words")
    child = RUN.replace('source = "corpus.txt"\n', "")
    run('base = "deep/parent.toml"\n' + child, "run.toml")
    assert read("run.toml").experiment.data.source == str(tmp_path / "deep" / "words.txt")
    overridden = read("run.toml", ["data.source=words.txt"])
    assert overridden.experiment.data.source == str(tmp_path / "words.txt")


def test_resolve_takes_paths_from_the_folder_given(tmp_path, corpus):
    tiny = read("tiny").experiment
    data = msgspec.structs.replace(tiny.data, source="corpus.txt", digest="", format="auto")
    resolved = resolve(msgspec.structs.replace(tiny, data=data), tmp_path)
    assert resolved.data.source == str(corpus)
    assert resolve(resolved, "/") == resolved


@pytest.mark.parametrize(
    "name, wanted", [("a.txt", "text"), ("a.jsonl", "jsonl"), ("a", "text"), ("a.ndjson", "jsonl")]
)
def test_the_format_follows_the_name_unless_it_is_written(run, tmp_path, name, wanted):
    (tmp_path / name).write_text('{"text": "hello"}\n')
    assert read(run(), [f"data.source={name}"]).experiment.data.format == wanted
    assert read(run(), [f"data.source={name}", "format=jsonl"]).experiment.data.format == "jsonl"


def test_a_written_digest_is_checked(run, corpus):
    digest = read(run()).experiment.data.digest
    assert read(run(), [f"digest={digest}"]).experiment.data.digest == digest
    corpus.write_text("something else")
    text = refused(run(), f"digest={digest}")
    assert "is not the digest of" in text
    assert digest in text
    assert "no digest" in refused(run(), "digest=abc")
    assert "no digest" in refused(run(), f"digest={digest.upper()}")


def test_bases_chain_and_the_nearest_wins(run):
    run(RUN)
    run('base = "run.toml"\n[experiment]\nseed = 4\n[execution]\nranks = 2\n', "b.toml")
    run('base = "b.toml"\n[experiment]\nseed = 5\n', "c.toml")
    reading = read("c.toml")
    assert (reading.experiment.seed, reading.execution.ranks, reading.experiment.length.steps) == (5, 2, 10)
    assert reading.origins["experiment.seed"] == "c.toml:3:1"
    assert reading.origins["execution.ranks"] == "b.toml:5:1"
    assert reading.origins["experiment.length.steps"] == "run.toml:4:8"


def test_a_preset_can_be_a_base(run):
    reading = read(run('base = "tiny"\n[experiment]\nseed = 9\n'))
    assert experiment_digest(reading.experiment) == experiment_digest(read("tiny", ["seed=9"]).experiment)
    assert reading.origins["experiment.optimizer.lr"].startswith("preset tiny:")


def test_a_base_that_goes_in_a_circle_is_refused(run):
    run('base = "b.toml"\n', "a.toml")
    run(f'base = "./../{Path.cwd().name}/a.toml"\n', "b.toml")
    text = refused("a.toml")
    assert "circle" in text
    assert "b.toml:1:1" in text


def test_a_base_that_is_missing_names_the_line(run):
    text = refused(run('seed = 1\nbase = "tinny.toml"\n'))
    assert "run.toml:2:1: run file tinny.toml does not exist" in text
    assert "a preset with a similar name exists: tiny" in text
    assert "base cannot be 3" in refused(run("base = 3\n"))


def test_a_change_of_kind_leaves_the_keys_of_the_other_kind_behind_and_says_so(run):
    text = RUN + '[experiment.schedule]\nkind = "cosine"\nwarmup_steps = 2\nfinal_fraction = 0.5\n'
    run(text)
    line = text.split("\n").index("final_fraction = 0.5") + 1
    run('base = "run.toml"\n[experiment.schedule]\nkind = "constant"\n', "b.toml")
    for reading in (read("b.toml"), read("run.toml", ["schedule.kind=constant"])):
        assert msgspec.to_builtins(reading.experiment.schedule) == {"kind": "constant", "warmup_steps": 2}
        (note,) = reading.notes
        assert f"experiment.schedule.final_fraction = 0.5 (run.toml:{line}:1) is left out" in note
    silent = read("run.toml", ['experiment.schedule={kind="constant"}'])
    assert msgspec.to_builtins(silent.experiment.schedule) == {"kind": "constant", "warmup_steps": 0}
    assert silent.notes == ()
    text = refused("run.toml", "schedule.kind=constant", "schedule.final_fraction=0.2")
    assert "`final_fraction` exists for kind = cosine; here kind = constant" in text
    run('base = "run.toml"\n[experiment.schedule]\nkind = "constant"\nfinal_fraction = 0.1\n', "c.toml")
    assert "c.toml:4:1" in refused("c.toml")


def test_an_absent_kind_is_that_of_the_default(run):
    reading = read(run(RUN + "[experiment.schedule]\nwarmup_steps = 2\n"))
    assert msgspec.to_builtins(reading.experiment.schedule) == {"kind": "constant", "warmup_steps": 2}
    text = refused(run(RUN + "[experiment.schedule]\ndecay_steps = 2\n"))
    assert "`decay_steps` exists for kind = cosine; here kind = constant" in text
    assert "experiment.model.kind is missing" in refused(run(RUN.replace('kind = "llama"\n', "")))


def test_machines_are_named_or_described(run, tmp_path):
    assert read(run('machine = "cpu-2"\n' + RUN)).machine == "cpu-2"
    run('machine = "big.toml"\n' + RUN, "deep/run.toml")
    (tmp_path / "deep" / "corpus.txt").write_text("x")
    assert read("deep/run.toml").machine == str(tmp_path / "deep" / "big.toml")
    assert read(run(RUN + "[machine]\nname = 'mine'\n")).machine == str(tmp_path / "run.toml")
    assert read(run(), ["machine=cpu-4"]).machine == "cpu-4"
    assert "machine cannot be 3" in refused(run("machine = 3\n" + RUN))


def test_a_file_name_that_is_no_preset_is_taken_as_a_file(run):
    assert read(run(name="plain")).name == "plain"
    run('base = "small"\n', "tiny")
    assert read("tiny").experiment.model.num_layers == 4
    assert read("./tiny").experiment.model.num_layers == 6


def test_with_overrides_changes_only_the_execution():
    execution = Execution(ranks=2)
    changed = with_overrides(execution, ["ranks=3", "input.workers=2", "checkpoint.keep=5"])
    assert (changed.ranks, changed.input.workers, changed.checkpoint.keep) == (3, 2, 5)
    assert with_overrides(execution, []) == execution
    for overrides, words in (
        (["seed=1"], "experiment.seed cannot change in a run that continues"),
        (["ranks=0"], "execution.ranks cannot be 0"),
        (["machine=cpu-2"], "machine cannot change"),
        (["rnaks=2"], "the nearest is execution.ranks"),
        (["checkpoint.keep=1"], "≥ 2"),
    ):
        with pytest.raises(InvalidInput, match=words):
            with_overrides(execution, overrides)


def test_reading_needs_neither_torch_nor_numpy():
    code = (
        "import sys, elinvar.spec.read as r, elinvar.spec.schema, elinvar.spec.render; r.read('tiny');"
        "assert not {'torch', 'numpy'} & set(sys.modules)"
    )
    subprocess.run(
        [sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    )
