"""`elinvar sample` on a run folder whose parameters are put in place by hand."""

import json

import pytest

from elinvar.checkpoint import restore
from elinvar.cli.main import run
from elinvar.data.store import open_store
from elinvar.model.generate import generate
from elinvar.model.transformer import build
from elinvar.record.folder import RunFolder
from elinvar.spec.read import experiment_json, read


@pytest.fixture
def folder(tmp_path, monkeypatch):
    text = tmp_path / "text.txt"
    text.write_text("Où est la bibliothèque ? Là-bas, près de l’église. " * 40, encoding="utf-8")
    small = ["model.hidden_size=16", "model.num_heads=2", "model.num_kv_heads=1", "model.num_layers=1"]
    reading = read(
        "tiny",
        [
            f"experiment.data.source={json.dumps(str(text))}",
            'experiment.data.tokenizer={kind="bytes"}',
            "experiment.data.held_out=0",
            "experiment.model.vocab_size=300",
            "experiment.batch.tokens_per_sequence=32",
            *(f"experiment.{each}" for each in small),
        ],
    )
    made = RunFolder.create(tmp_path / "run", experiment_json(reading.experiment))
    experiment = made.experiment()
    model = build(experiment.model, experiment.numerics, 1)
    parameters = {name: 20 * value for name, value in model.state_dict().items()}
    model.load_state_dict(parameters)

    def load_parameters(_, step=None):
        return restore.Loaded(parameters, 40 if step is None else step, ())

    monkeypatch.setattr(restore, "load_parameters", load_parameters)
    return made, model, open_store(experiment.data).tokenizer


def invoke(capsys, *arguments):
    code = run(["sample", *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_text_and_json_are_the_tokens_of_generate(folder, capsys):
    made, model, tokenizer = folder
    chosen = {"temperature": 1.2, "top_k": 7, "top_p": 0.9, "seed": 3}
    expected = list(generate(model, tokenizer.encode("Où"), 30, **chosen, num_ids=257))
    if tokenizer.end_of_document in expected:
        expected = expected[: expected.index(tokenizer.end_of_document)]
    options = ["--tokens", 30, "--temperature", 1.2, "--top-k", 7, "--top-p", 0.9, "--seed", 3]
    code, out, _ = invoke(capsys, made.path, "Où", *options, "--json")
    assert code == 0
    text = tokenizer.decode(expected)
    assert json.loads(out) == {"prompt": "Où", "text": text, "tokens": expected, "step": 40, "seed": 3}
    assert invoke(capsys, made.path, "Où", *options) == (0, f"Où{text}\n", "")


def test_text_ends_with_its_document(folder, capsys, monkeypatch):
    made, _, tokenizer = folder
    drawn = [*"é ".encode(), tokenizer.end_of_document, 65]
    monkeypatch.setattr("elinvar.model.generate.generate", lambda *_, **__: iter(drawn))
    assert invoke(capsys, made.path, "x") == (0, "xé \n", "")
    # A character that is cut at the end shows as such, in both forms.
    monkeypatch.setattr("elinvar.model.generate.generate", lambda *_, **__: iter("é".encode()[:1]))
    assert invoke(capsys, made.path, "x") == (0, "x\ufffd\n", "")
    code, out, _ = invoke(capsys, made.path, "x", "--json")
    assert (code, json.loads(out)["text"], json.loads(out)["tokens"]) == (0, "\ufffd", [0xC3])


def test_an_empty_prompt_begins_a_document(folder, capsys, monkeypatch):
    made, _, tokenizer = folder
    prompts = []

    def record(_, prompt, *__, **___):
        prompts.append(prompt)
        return iter([65])

    monkeypatch.setattr("elinvar.model.generate.generate", record)
    assert invoke(capsys, made.path, "") == (0, "A\n", "")
    assert prompts == [[tokenizer.end_of_document]]


def test_at_is_the_step_that_is_loaded(folder, capsys):
    made, *_ = folder
    code, out, _ = invoke(capsys, made.path, "x", "--at", 20, "--tokens", 1, "--json")
    assert (code, json.loads(out)["step"]) == (0, 20)


@pytest.mark.parametrize(
    "options, message",
    [
        (["--temperature", "-1"], "Invalid value for '--temperature': -1.0 is not in the range x>=0"),
        (["--temperature", "inf"], "temperature must be a finite number"),
        (["--top-p", "0"], "Invalid value for '--top-p': 0.0 is not in the range 0<x<=1"),
        (["--top-p", "2"], "Invalid value for '--top-p'"),
        (["--top-k", "-3"], "Invalid value for '--top-k'"),
        (["--tokens", "-1"], "Invalid value for '--tokens'"),
        (["--tokens", "1.5"], "1.5"),
    ],
)
def test_wrong_options_are_exit_2_and_print_nothing(folder, capsys, options, message):
    made, *_ = folder
    code, out, err = invoke(capsys, made.path, "x", *options)
    assert (code, out) == (2, "")
    assert message in err


def test_a_folder_without_a_generation_is_exit_2(folder, capsys, monkeypatch):
    made, *_ = folder
    monkeypatch.undo()
    code, out, err = invoke(capsys, made.path, "x")
    assert (code, out) == (2, "")
    assert "generation" in err
    code, _, err = invoke(capsys, made.path / "nowhere", "x")
    assert code == 2
    assert "no such run folder" in err


def test_parameters_of_another_model_are_refused(folder, capsys, monkeypatch):
    made, model, _ = folder
    monkeypatch.setattr(
        restore, "load_parameters", lambda *_: restore.Loaded({"norm.weight": model.norm.weight}, 3, ())
    )
    code, _, err = invoke(capsys, made.path, "x")
    assert code == 2
    assert "the generation at step 3 is not of this run's model" in err
