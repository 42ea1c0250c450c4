"""`elinvar plan`: the page, the JSON, the folder of a run, and what must not be imported."""

import json
import os
import subprocess
import sys
from contextlib import closing

import msgspec
import pytest
from click.testing import CliRunner

from elinvar.cli.plan import PlanOutput, command
from elinvar.errors import DoesNotFit, InvalidInput
from elinvar.record.attempt import AttemptStart
from elinvar.record.events import Event
from elinvar.record.folder import RunFolder
from elinvar.record.manifest import Commit, encode_commit, generation_name
from elinvar.record.metrics import MetricsRow
from elinvar.spec.execution import Execution
from elinvar.spec.read import experiment_json, read


def run(*arguments):
    result = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    return result


PAGE = """\
parameters  918,656   embedding 131,072 · attention 196,608 · feed forward 589,824 · norm 1,152 · output 0
data        builtin:shakespeare   shuffle, 64 windows held out
            not read yet; to see whether they suffice: elinvar data show tiny
a step      2,048 tokens   8 microbatches × 2 sequences × 128 tokens
the run     300 steps   614,400 tokens
arithmetic  1.29e+10 operations a step   6,291,456 a token, forward and backward

execution   3 ranks on cpu   ZeRO-1 · contiguous · 2 input workers
machine     cpu-4   4 cores, 16.0 GiB
  owner     microbatches
  rank 0    0 1 2
  rank 1    3 4 5
  rank 2    6 7

memory      315.2 MiB a rank at most, 945.6 MiB in all, of 16.0 GiB (an estimate)
  process      260.0 MiB   Python and torch themselves
  input         16.0 MiB   microbatches kept ready, 2 workers
"""


def test_the_page():
    out = run("tiny", "ranks=3", "sharding=1", "workers=2", "--machine", "cpu-4").output
    assert out.splitlines()[0].startswith("experiment  ")
    assert out.split("\n", 1)[1].startswith(PAGE)
    assert "time        not known" in out
    assert "claim       same bits   one experiment, one fingerprint\n" in out
    assert (
        "note        8 microbatches on 3 ranks: the fullest has 3, so ranks wait for 11% of their time\n"
        in out
    )


def test_json_is_the_whole_plan_and_decodes_into_its_schema():
    result = run("tiny", "execution.ranks=10", "--machine", "cpu-16", "--json")
    output = msgspec.json.decode(result.stdout, type=PlanOutput)
    assert output.num_parameters == 918_656
    assert output.plan.ownership == (*((leaf,) for leaf in range(8)), (), ())
    assert output.tokens == 614_400
    assert output.memory_bytes_per_rank == sum(term.num_bytes for term in output.plan.memory.terms)
    assert json.loads(result.stdout)["plan"]["claim"]["relation"] == "same bits"
    assert "2 of 10 ranks own no microbatch" in output.plan.warnings[0]


def test_a_launcher_decides_auto_and_may_not_contradict(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert '"ranks": 4' in run("tiny", 'ranks="auto"', "--json").stdout
    with pytest.raises(InvalidInput, match="the launcher started 4 ranks"):
        run("tiny", "ranks=3")


def test_a_machine_that_is_too_small_says_what_to_cut(tmp_path):
    machine = tmp_path / "small.toml"
    machine.write_text('name = "small"\ncores = 1\nmemory_bytes = 1_000_000\n')
    with pytest.raises(DoesNotFit, match="but small has"):
        run("tiny", "--machine", str(machine))


def test_the_run_file_may_hold_its_machine(tmp_path):
    preset = run("tiny", "--machine", "cpu-2").output
    file = tmp_path / "run.toml"
    file.write_text('base = "tiny"\n[machine]\nname = "mine"\ncores = 7\nmemory_bytes = 4_294_967_296\n')
    assert "mine   7 cores, 4.0 GiB" in run(str(file)).output
    assert "cpu-2   2 cores, 4.0 GiB" in preset


def attempt(ranks, number):
    return AttemptStart(
        attempt=number,
        time_s=0.0,
        from_step=0,
        execution=msgspec.to_builtins(Execution(ranks=ranks, ownership="round_robin")),
        machine={},
        fingerprint={},
        versions={},
    )


def row(number, step, seconds):
    return MetricsRow(
        attempt=number,
        step=step,
        loss=1.0,
        denominator=2048,
        tokens=2048,
        grad_norm=1.0,
        lr=0.1,
        step_time_s=seconds,
    )


def test_a_folder_is_planned_as_it_would_be_resumed(tmp_path):
    path = tmp_path / "run"
    folder = RunFolder.create(path, experiment_json(read("tiny").experiment))
    assert "1 rank on" in run(str(path)).output
    journals = folder.journals()
    journals.attempts.append(attempt(2, 1))
    for step in range(1, 11):
        journals.metrics.append(row(1, step, 9.0 if step <= 3 else 0.5))  # the first three warm up
    journals.attempts.append(attempt(3, 2))
    journals.metrics.append(row(2, 11, 0.1))
    journals.close()
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}

    out = run(str(path), "ranks=2").output
    assert "2 ranks on cpu   ZeRO-0 · round_robin" in out
    assert "time        2 min 30 s   as fast as attempt 1: median of 7 steps on 2 ranks\n" in out
    assert "time        not known" in run(str(path)).output  # attempt 2 has too few steps on 3 ranks
    with (path / "attempts.jsonl").open("ab") as file:
        later = msgspec.structs.replace(attempt(3, 3), plan={"wanted_ranks": "auto", "steps": 500})
        file.write(msgspec.json.encode(later) + b"\n")
    before[path / "attempts.jsonl"] = (path / "attempts.jsonl").read_bytes()
    out = run(str(path)).output
    assert "1 rank on cpu" in out
    assert "500 steps" in out
    with pytest.raises(InvalidInput, match="cannot change in a run that continues"):
        run(str(path), "experiment.optimizer.lr=0.5")
    assert {file: file.read_bytes() for file in path.rglob("*") if file.is_file()} == before


def test_a_run_that_is_complete_has_nothing_left(tmp_path):
    folder = RunFolder.create(tmp_path / "run", experiment_json(read("tiny").experiment))

    def saved(step, sequence):
        name = generation_name(step, "ab" * 32, f"{sequence:08x}")
        place = folder.generations_path / name
        place.mkdir()
        commit = Commit(
            step=step, update_digest="ab" * 32, manifest_digest="cd" * 32, time_s=0.0,
            nonce=f"{sequence:08x}", sequence=sequence,
        )  # fmt: skip
        (place / "commit.json").write_bytes(encode_commit(commit))

    saved(120, 1)
    assert "300 steps   614,400 tokens   step 120 is saved, 180 steps left\n" in run(str(folder.path)).output
    saved(300, 2)
    out = run(str(folder.path)).output
    assert "step 300 is saved, nothing is left to do\n" in out
    assert "time        none: step 300 is reached\n" in out


def test_a_run_that_died_before_its_first_attempt_is_planned_as_it_was_asked_for(tmp_path):
    folder = RunFolder.create(tmp_path / "run", experiment_json(read("tiny").experiment))
    execution = msgspec.to_builtins(Execution(ranks=3, sharding=1))
    asked = {"execution": execution, "wanted_ranks": "auto", "steps": 400}
    with closing(folder.journals()) as journals:
        journals.events.append(Event(attempt=1, time_s=0.0, kind="asked", step=0, data=asked))
    out = run(str(folder.path)).output
    assert "1 rank on cpu   ZeRO-1" in out
    assert "400 steps" in out


def test_planning_is_quick_because_it_imports_neither_torch_nor_numpy():
    code = (
        "import resource, sys\n"
        "from elinvar.cli.plan import command\n"
        "command(['tiny'], standalone_mode=False)\n"
        "used = resource.getrusage(resource.RUSAGE_SELF)\n"
        "print(sorted({'torch', 'numpy'} & set(sys.modules)), used.ru_utime + used.ru_stime < 1.5)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, env=os.environ
    )
    assert done.stdout.splitlines()[-1] == "[] True"


def test_the_claim_of_continuing_compares_with_the_fingerprint_that_doctor_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("ELINVAR_CACHE", str(tmp_path / "cache"))
    folder = RunFolder.create(tmp_path / "run", experiment_json(read("tiny").experiment))
    journals = folder.journals()
    started = attempt(1, 1)
    journals.attempts.append(
        msgspec.structs.replace(started, fingerprint={"device": "cpu", "cpu": "x", "threads": "1"})
    )
    journals.close()
    assert "on condition that the fingerprints are equal" in run(str(folder.path)).output
    kept = tmp_path / "cache" / "fingerprint.json"
    kept.parent.mkdir()
    kept.write_text('{"device": "cpu", "cpu": "x", "threads": "2"}')  # threads are the experiment's
    assert (
        "claim       same bits   equal experiment digests, equal fingerprints" in run(str(folder.path)).output
    )
    kept.write_text('{"device": "cpu", "cpu": "y", "threads": "1"}')
    assert "claim       same math   the fingerprints differ in cpu: x and y" in run(str(folder.path)).output
    assert "on condition" not in run(str(folder.path), "--machine", "cpu-2").output
