"""`elinvar samples`: exact answers in both directions, checked against what the ledger recorded."""

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from elinvar.cli.samples import command
from elinvar.data.feed import Feed
from elinvar.data.store import open_store
from elinvar.errors import InvalidInput, Mismatch
from elinvar.record.events import Event
from elinvar.record.folder import RunFolder
from elinvar.record.ledger import LedgerRow, ids_digest
from elinvar.spec.read import experiment_json, read

LAST = 40


def run(*arguments):
    result = CliRunner().invoke(command, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


@pytest.fixture
def feed(tmp_path):
    (tmp_path / "own.txt").write_text("".join(f"Line {number} of the text.\n" for number in range(120)))
    (tmp_path / "run.toml").write_text(
        'base = "tiny"\n[experiment.data]\nsource = "own.txt"\nheld_out = 3\ntokenizer = {kind = "bytes"}\n'
        "[experiment.batch]\nmicrobatches = 2\nsequences_per_microbatch = 3\ntokens_per_sequence = 32\n"
    )
    experiment = read(str(tmp_path / "run.toml")).experiment
    return Feed(open_store(experiment.data), experiment)


def row(feed, step, **changed):
    occurrences = [o for index in range(2) for o in feed.training(step, index).occurrences]
    values = {
        "attempt": 1,
        "step": step,
        "position": occurrences[0].position,
        "count": len(occurrences),
        "epoch": occurrences[0].epoch,
        "ids_digest": ids_digest(o.sample.index for o in occurrences),
    }
    return LedgerRow(**(values | changed))


@pytest.fixture
def folder(feed, tmp_path):
    made = RunFolder.create(tmp_path / "run", experiment_json(feed.recipe[1]))
    write(made, [row(feed, step) for step in range(1, LAST + 1)], feed.store.digest)
    return made


def write(folder, rows, dataset):
    journals = folder.journals()
    for entry in rows:
        journals.ledger.append(entry)
    journals.events.append(Event(attempt=1, time_s=0.0, kind="start", step=0, data={"dataset": dataset}))
    journals.close()


def test_a_step_names_what_its_microbatches_held(feed, folder):
    for step in (1, 17, LAST):
        answer = json.loads(run(folder.path, "--step", step, "--json"))
        expected = [(index, o) for index in range(2) for o in feed.training(step, index).occurrences]
        assert [(s["microbatch"], s["position"], s["epoch"], s["sample"]) for s in answer["samples"]] == [
            (index, o.position, o.epoch, o.sample.index) for index, o in expected
        ]
        assert answer["ids_digest"] == ids_digest(o.sample.index for _, o in expected)
        assert all(s["text"] == feed.text(s["sample"]) for s in answer["samples"])


def test_a_sample_names_every_step_that_saw_it(feed, folder):
    seen = {}
    for step in range(1, LAST + 1):
        for index in range(2):
            for occurrence in feed.training(step, index).occurrences:
                seen.setdefault(occurrence.sample.index, []).append(
                    {
                        "step": step,
                        "microbatch": index,
                        "position": occurrence.position,
                        "epoch": occurrence.epoch,
                    }
                )
    assert max(map(len, seen.values())) >= 3
    for sample in range(feed.order.split.num_samples):
        answer = json.loads(run(folder.path, "--sample", sample, "--json"))
        assert answer["seen"] == seen.get(sample, [])
        assert answer["held_out"] == (sample in feed.order.split.held_out_samples)
    named = json.loads(run(folder.path, "--sample", f"{feed.store.digest[:8]}:0", "--json"))
    assert named["sample"] == 0


def test_the_pages(feed, folder):
    out = run(folder.path, "--step", 2)
    first = feed.training(2, 0).occurrences[0]
    lines = out.splitlines()
    assert lines[0] == "step 2 consumed 6 samples (attempt 1; as the ledger says)"
    assert lines[1] == "microbatch  position  epoch  sample  text begins"
    assert lines[2].split()[:4] == ["0", "6", "0", str(first.sample.index)]
    assert f"── sample {first.sample.index} ──\n{feed.text(first.sample.index)}\n" in run(
        folder.path, "--step", 2, "--text"
    )
    assert run(folder.path, "--sample", first.sample.index).startswith(
        f"sample {first.sample.index} was seen "
    )
    held_out = feed.order.split.held_out_samples[0]
    assert run(folder.path, "--sample", held_out).startswith(
        f"sample {held_out} is held out: no step sees it"
    )


def test_a_rewound_step_counts_once_by_its_last_attempt(feed, folder):
    write(folder, [row(feed, 5, attempt=2)], feed.store.digest)
    assert json.loads(run(folder.path, "--step", 5, "--json"))["attempt"] == 2


def test_a_ledger_that_differs_from_the_order_is_a_mismatch(feed, folder):
    write(
        folder,
        [row(feed, 5, attempt=2, ids_digest="0" * 64), row(feed, 6, attempt=2, position=0)],
        feed.store.digest,
    )
    for step in (5, 6):
        with pytest.raises(Mismatch, match=f"step {step} consumed other samples than its experiment says"):
            run(folder.path, "--step", step)
    run(folder.path, "--step", 7)


def test_data_of_another_digest_than_the_run_used_are_a_mismatch(feed, folder):
    write(folder, [], "0" * 64)
    with pytest.raises(Mismatch, match="are not those that attempt 1 learned from"):
        run(folder.path, "--step", 1)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "one of --step N and --sample ID is needed"),
        (["--step", "1", "--sample", "1"], "and not both"),
        (["--step", "41"], "step 41 has not run: .* has steps 1 to 40"),
        (["--sample", "x"], "'x' names no sample"),
        (["--sample", "-1"], "'-1' names no sample"),
        (["--sample", "9999"], "the data set has no sample 9999"),
        (["--sample", "abcdef:1"], "has not learned from data set abcdef"),
    ],
)
def test_refusals(folder, arguments, said):
    with pytest.raises(InvalidInput, match=said):
        run(folder.path, *arguments)


def test_a_run_without_a_step_has_no_answer(feed, tmp_path):
    empty = RunFolder.create(tmp_path / "empty", experiment_json(feed.recipe[1]))
    with pytest.raises(InvalidInput, match="has no finished step yet"):
        run(empty.path, "--step", 1)


def test_no_torch_is_imported(folder):
    script = (
        "import sys; from elinvar.cli.main import run; code = run(sys.argv[1:]); "
        "assert code == 0 and 'torch' not in sys.modules and 'tokenizers' not in sys.modules"
    )
    subprocess.run(
        [sys.executable, "-c", script, "samples", str(folder.path), "--step", "1"],
        check=True,
        capture_output=True,
    )
