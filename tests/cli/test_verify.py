"""`elinvar verify`: its table, its proof, and that it fails where something is not what was claimed."""

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from drills.program import ENVIRONMENT, Program, children, cli, write_run
from elinvar.errors import Mismatch
from elinvar.record import proof as record

STEPS = 6


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("verify")


@pytest.fixture(scope="module")
def run_file(place):
    return write_run(place)


@pytest.fixture(scope="module")
def trained(run_file, place):
    assert cli("train", run_file, "--run", place / "run", "--until", STEPS, "--quiet") == 0
    return place / "run"


@pytest.fixture
def folder(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "run")


@pytest.fixture
def two_ranks(tmp_path):
    """An execution to compare: the quickest that is another one."""
    path = tmp_path / "two.toml"
    path.write_text("[execution]\nranks = 2\nsharding = 1\n")
    return path


@pytest.mark.drill
def test_every_claim_holds_for_a_run_and_for_what_it_recorded(folder, capsys):
    (folder / "report.html").write_text("old")
    assert cli("verify", folder, "--steps", STEPS) == 0
    said = capsys.readouterr()
    proof = record.read_proof(folder / "proof.json")
    assert proof.ok
    ours = [case for case in proof.cases if case.expected != "different"]
    contrasts = [case for case in proof.cases if case.expected == "different"]
    assert len({case.digests[STEPS] for case in ours}) == 1
    assert ours[0].expected == "reference"
    assert ours[-1].name == "this run, as it was recorded"
    assert {case.tokens for case in proof.cases} == {STEPS * 64}
    assert all((case.skipped, case.repeated) == (0, 0) for case in ours)
    assert len(contrasts) == 2
    assert not {case.digests[STEPS] for case in contrasts} & {ours[0].digests[STEPS]}
    assert said.out.splitlines()[-2:] == [
        f"every claim holds: same bits over {len(ours)} cases",
        f"proof  {folder}/proof.json",
    ]
    assert said.err.count("\nok ") + 1 == len(proof.cases)
    assert len((folder / "report.html").read_text()) > 10_000


def test_json_is_the_proof_and_nothing_else(tmp_path, run_file, two_ranks, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli("verify", run_file, "--against", two_ranks, "--steps", 3, "--json") == 0
    said = capsys.readouterr()
    found = json.loads(said.out)
    assert said.err == ""
    [path] = tmp_path.glob("runs/verify-run-*/proof.json")
    assert json.loads(path.read_text()) == found
    assert [case["name"] for case in found["cases"]] == ["1 rank, ZeRO-0", "two"]
    assert [case["execution"]["ranks"] for case in found["cases"]] == [1, 2]
    assert found["steps"] == 3
    schema = Path(__file__).parents[2] / "docs" / "reference" / "schemas" / "verify.json"
    jsonschema.validate(found, json.loads(schema.read_text()))


def tamper(folder, change):
    """Rewrite the rows of metrics.jsonl."""
    path = folder / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        change(row)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_a_recorded_digest_that_nobody_can_compute_is_a_mismatch(folder, two_ranks, capsys):
    def change(row):
        if row["step"] == 2:
            row["update_digest"] = "0" * 64

    tamper(folder, change)
    assert cli("verify", folder, "--against", two_ranks, "--steps", 4) == 4
    said = capsys.readouterr()
    assert "error: 1 of 3 cases are not what was claimed" in said.err
    assert "this run, as it was recorded: first differs at step 2" in said.err
    assert "a claim FAILED: same bits over 3 cases" in said.out
    proof = record.read_proof(folder / "proof.json")
    assert not proof.ok
    assert [case.ok for case in proof.cases] == [True, True, False]


def test_samples_that_the_order_does_not_give_are_a_mismatch(folder, two_ranks, capsys):
    path = folder / "ledger" / "steps.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows[1]["ids_digest"] = "0" * 64
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert cli("verify", folder, "--against", two_ranks, "--steps", 2) == 4
    assert "this run, as it was recorded: other samples in steps [2]" in capsys.readouterr().err


def test_a_run_shorter_than_the_comparison_is_compared_as_far_as_it_goes(folder, two_ranks, capsys):
    assert cli("verify", folder, "--against", two_ranks, "--steps", STEPS + 4) == 0
    proof = record.read_proof(folder / "proof.json")
    assert max(proof.cases[-1].digests) == STEPS
    assert proof.cases[-1].tokens == STEPS * 64
    assert max(proof.cases[0].digests) == STEPS + 4


def test_a_fork_is_not_held_against_a_start_from_nothing(folder, run_file, two_ranks, tmp_path, capsys):
    child = tmp_path / "child"
    words = ["--fork", f"{folder}@2", "--run", child, "--until", 4, "--quiet"]
    assert cli("train", run_file, *words) == 0
    capsys.readouterr()
    assert cli("verify", child, "--against", two_ranks, "--steps", 4) == 0
    assert f"note   this run is a fork of {folder} at step 2: its own steps were not compared" in (
        capsys.readouterr().err
    )
    assert len(record.read_proof(child / "proof.json").cases) == 2


def test_steps_after_an_accepted_change_of_bits_are_not_compared(folder, run_file, two_ranks):
    words = ["threads=2", "--run", folder, "--accept", "same-math", "--until", STEPS + 2, "--quiet"]
    assert cli("train", run_file, *words) == 0
    assert cli("verify", folder, "--against", two_ranks, "--steps", STEPS + 2) == 0
    assert max(record.read_proof(folder / "proof.json").cases[-1].digests) == STEPS


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[experiment]\nseed = 3\n", "only [execution] may differ"),
        ("[execution]\nrank = 3\n", "ranks"),
        ("[execution\n", "cannot read"),
        ("[execution]\nranks = 1.5\n", "ranks"),
        (None, "no such file"),
    ],
)
def test_an_execution_that_is_none_is_refused(tmp_path, run_file, capsys, monkeypatch, text, words):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "wrong.toml"
    if text is not None:
        path.write_text(text)
    assert cli("verify", run_file, "--against", path) == 2
    said = capsys.readouterr()
    assert words in said.err
    assert said.out == ""
    assert not (tmp_path / "runs").exists()


def test_a_folder_takes_no_overrides_and_steps_are_at_least_one(folder, capsys):
    assert cli("verify", folder, "lr=1") == 2
    assert "its experiment is what it is" in capsys.readouterr().err
    assert cli("verify", folder, "--steps", 0) == 2
    assert "--steps" in capsys.readouterr().err


def test_a_proof_with_a_failed_case_is_a_mismatch_that_counts_only_claims():
    from elinvar.cli.verify import check

    def case(name, expected, *, ok=True):
        return record.Case(
            name=name, execution={}, digests={1: "a"}, relation="same bits", expected=expected,
            tokens=1, skipped=0, repeated=0, seconds=0.0, ok=ok,
        )  # fmt: skip

    cases = [case("1 rank", "reference"), case("2 ranks", "same bits", ok=False), case("DDP", "different")]
    proof = record.Proof(
        experiment_digest="a" * 64, math_digest="b" * 64, steps=1, claim="same bits",
        fingerprint={}, cases=cases, ok=False,
    )  # fmt: skip
    with pytest.raises(Mismatch, match="1 of 2 cases"):
        check(proof)


@pytest.mark.drill
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 75)])
def test_a_stop_proves_nothing_and_leaves_nothing(tmp_path, folder, number, code):
    """Asked to stop in the middle of a case: at once, without a verdict."""
    places = tmp_path / "places"
    places.mkdir()
    program = Program(tmp_path, "verify", folder, "--steps", 2000, env={"TMPDIR": str(places)})
    program.wait_for(lambda: list(places.glob("*/case-0/metrics.jsonl")), "first case")
    program.send(number, group=True)
    found, lines = program.end()
    assert found == code, program.said
    assert "dropped" in lines[-1]
    assert program.output.read_text() == ""
    assert not (folder / "proof.json").exists()
    assert list(places.glob("elinvar-verify-*")) == []
    assert children(program.process.pid) == []


@pytest.mark.parametrize("command", ["train", "resume", "verify", "demo", "checkpoint"])
def test_help_imports_no_arrays(command):
    code = (
        "import sys; from elinvar.cli.main import run; assert run(sys.argv[1:]) == 0;"
        "found = {'torch', 'numpy'} & set(sys.modules); assert not found, found"
    )
    subprocess.run(
        [sys.executable, "-c", code, command, "--help"],
        check=True,
        stdout=subprocess.DEVNULL,
        env=ENVIRONMENT,
        timeout=60,
    )


def test_a_place_that_cannot_be_made_is_one_clear_error(tmp_path, run_file, two_ranks, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").write_text("a file")
    assert cli("verify", run_file, "--against", two_ranks, "--steps", 1) == 2
    assert "cannot write " in capsys.readouterr().err
