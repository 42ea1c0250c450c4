"""Going on, going back, branching off: what `resume`, `--at`, `--until`, `--fork` and `--accept` do and refuse."""

import json
import re
import shutil

import pytest
from msgspec import json as fast_json
from msgspec.structs import replace

from drills.program import RUN, Reference, cli, digests, kinds, last_end, write_run
from elinvar.record.folder import RunFolder
from elinvar.record.manifest import (
    COMMIT,
    MANIFEST,
    Commit,
    decode_manifest,
    encode_commit,
    encode_manifest,
    manifest_digest,
)

COSINE = RUN.replace('kind = "constant"', 'kind = "cosine"\nwarmup_steps = 1').replace("100000", "6")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("resume")


@pytest.fixture(scope="module")
def run_file(place):
    return write_run(place)


@pytest.fixture(scope="module")
def reference(run_file, place):
    return Reference(run_file, place / "reference")


@pytest.fixture(scope="module")
def six(run_file, place):
    """A run until step 6, on one rank, with generations at 2, 4 and 6."""
    assert cli("train", run_file, "--run", place / "six", "--until", 6, "--quiet") == 0
    return place / "six"


@pytest.fixture
def folder(six, tmp_path):
    """A copy of it for this test alone."""
    return shutil.copytree(six, tmp_path / "run")


def contents(folder):
    return {
        path.relative_to(folder): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()
    }


def steps_saved(folder):
    return [generation.step for generation in RunFolder.open(folder).generations()]


def refused(capsys, folder, *words):
    """The error of a command that exits with 2 and changes nothing in `folder`, not even the lock."""
    before = contents(folder)
    capsys.readouterr()
    assert cli(*words) == 2
    assert contents(folder) == before
    return capsys.readouterr().err


def test_a_run_goes_on_to_where_it_was_asked(folder, reference, capsys):
    assert cli("resume", folder, "--until", 8) == 0
    said = capsys.readouterr().err
    assert f"run    {folder} (continued) · experiment " in said
    assert re.search(r"^from   step 6, generation 00000006-", said, re.MULTILINE)
    assert re.search(r"^step 8/8 +100%", said, re.MULTILINE)
    assert f"report {folder}/report.html" in said
    assert (folder / "report.html").stat().st_size > 10_000
    assert digests(folder) == reference(8)
    assert (last_end(folder).reason, last_end(folder).to_step) == ("until", 8)
    assert cli("resume", folder, "--until", 7) == 0
    assert "done   step 8 is reached already; nothing to do\n" in capsys.readouterr().err
    assert len(RunFolder.open(folder).attempts()) == 2
    assert not RunFolder.open(folder).is_running


def test_a_quiet_run_says_nothing_and_writes_its_report_all_the_same(folder, capsys):
    (folder / "report.html").unlink()
    capsys.readouterr()
    assert cli("resume", folder, "--until", 7, "--quiet") == 0
    assert capsys.readouterr() == ("", "")
    assert (folder / "report.html").exists()


def test_going_back_keeps_what_came_later(folder, reference, capsys):
    assert cli("resume", folder, "--at", 4, "--until", 5, "ranks=2", "sharding=1") == 0
    run = RunFolder.open(folder)
    assert steps_saved(folder) == [4, 6, 5]  # the newest is the last committed; 2 is retained away
    [event] = kinds(folder, "discarded")
    assert (event.step, event.data) == (4, {"from_step": 5, "to_step": 6})
    rows = run.metrics()[0]
    assert [(row.attempt, row.step) for row in rows] == [(1, n) for n in range(1, 7)] + [(2, 5)]
    assert rows[-1].update_digest == reference(5)[5] == rows[4].update_digest
    # and it goes on from there, not from the later step that was left
    assert cli("resume", folder, "--until", 6) == 0
    assert (last_end(folder).to_step, run.attempts()[-1].from_step) == (6, 5)
    assert digests(folder) == reference(6)


@pytest.mark.parametrize("step", [3, 0, 99, -1])
def test_there_is_only_a_going_back_to_a_generation(folder, capsys, step):
    said = refused(capsys, folder, "resume", folder, "--at", step)
    assert f"{folder} has no generation at step {step}" in said
    assert "generations are at step: 2, 4, 6" in said


def test_a_damaged_generation_is_passed_over_and_said(folder, reference, capsys):
    newest = RunFolder.open(folder).generations()[-1]
    payload = newest.path / "rank-0.bin"
    data = bytearray(payload.read_bytes())
    data[len(data) // 2] ^= 1
    payload.write_bytes(data)
    assert cli("resume", folder, "--until", 8) == 0
    said = capsys.readouterr().err
    assert f"note   passed over {newest.name}: " in said
    assert RunFolder.open(folder).attempts()[-1].from_step == 4
    [event] = kinds(folder, "fault")
    assert newest.name in event.data["message"]
    assert digests(folder) == reference(8)
    assert newest.path.exists()


def test_without_a_sound_generation_the_run_fails_and_deletes_nothing(folder, capsys):
    for generation in RunFolder.open(folder).generations():
        (generation.path / "rank-0.bin").write_bytes(b"")
    before = {path for path in contents(folder) if "generations" in path.parts}
    assert cli("resume", folder, "--until", 8) == 1
    said = capsys.readouterr().err
    assert "error: no generation of this run can be restored" in said
    assert {path for path in contents(folder) if "generations" in path.parts} == before
    assert said.count("the bytes in rank-0.bin are not those that were written") == 3


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("rank=3", ["rank", "execution.ranks"]),
        ("ranks=1.5", ["ranks"]),
        ("experiment.optimizer.lr=1", ["experiment"]),
        ("checkpoint.keep=1", ["keep"]),
    ],
)
def test_only_a_real_value_of_the_execution_can_be_overridden(folder, capsys, override, words):
    said = refused(capsys, folder, "resume", folder, override)
    for word in words:
        assert word in said


def test_another_experiment_is_refused_with_both_values_and_both_ways_on(folder, run_file, capsys):
    said = refused(capsys, folder, "train", run_file, "--run", folder, "lr=5e-3", "seed=8")
    assert re.search(r"experiment\.optimizer\.lr +run 0\.01 +asked 0\.005", said)
    assert re.search(r"experiment\.seed +run \d+ +asked 8", said)
    assert f"elinvar resume {folder}" in said
    assert f"--fork {folder}@6" in said


def test_a_longer_run_of_a_constant_schedule_goes_on(tmp_path, run_file, reference):
    folder = tmp_path / "run"
    assert cli("train", run_file, "steps=3", "--run", folder, "--quiet") == 0
    assert last_end(folder).reason == "completed"
    assert cli("train", run_file, "steps=5", "--run", folder, "--quiet") == 0
    assert digests(folder) == reference(5)
    # resume knows the longer length
    assert cli("resume", folder, "--quiet") == 0
    assert len(RunFolder.open(folder).attempts()) == 2


def test_a_longer_cosine_run_is_refused_with_its_reason(tmp_path, capsys):
    run_file = write_run(tmp_path, COSINE)
    folder = tmp_path / "run"
    assert cli("train", run_file, "--run", folder, "--until", 2, "--quiet") == 0
    said = refused(capsys, folder, "train", run_file, "steps=9", "--run", folder)
    assert "an absent decay_steps is length.steps" in said
    assert "decay_steps=6" in said
    assert cli("train", run_file, "steps=7", "decay_steps=6", "--run", folder, "--quiet") == 0
    assert last_end(folder).to_step == 7


@pytest.mark.parametrize("until", [0, -1, 100001])
def test_an_end_outside_the_run_is_refused(folder, capsys, until):
    assert "lies outside the run" in refused(capsys, folder, "resume", folder, "--until", until)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_fork_stands_alone_from_its_first_moment(folder, run_file, tmp_path, ranks):
    child = tmp_path / "child"
    fork = ["--fork", f"{folder}@4", "lr=5e-3", f"ranks={ranks}"]
    assert cli("train", run_file, *fork, "--run", child, "--until", 5, "--quiet") == 0
    lineage = json.loads((child / "lineage.json").read_text())
    parent = next(g for g in RunFolder.open(folder).generations() if g.step == 4)
    assert (lineage["run"], lineage["step"], lineage["generation"]) == (str(folder), 4, parent.name)
    assert steps_saved(child) == [4, 5]
    assert RunFolder.open(child).generations()[0].update_digest == parent.update_digest
    shutil.rmtree(folder)
    assert cli("resume", child, "--until", 6, "--quiet") == 0
    assert sorted(digests(child)) == [5, 6]
    assert RunFolder.open(child).attempts()[-1].from_step == 5


def test_a_fork_of_the_same_experiment_learns_the_same(folder, run_file, tmp_path, reference):
    assert cli("train", run_file, "--fork", f"{folder}@2", "--run", tmp_path / "child", "--until", 4) == 0
    assert digests(tmp_path / "child") == {step: reference(4)[step] for step in (3, 4)}


@pytest.mark.parametrize(
    ("fork", "words"),
    [
        ("{}@3", ["has no generation at step 3", "generations are at step: 2, 4, 6"]),
        ("{}", ["does not name a state"]),
        ("{}@x", ["does not name a state"]),
        ("{}-nowhere@2", ["no such run folder"]),
    ],
)
def test_a_fork_of_what_is_not_there_is_refused(folder, run_file, tmp_path, capsys, fork, words):
    child = tmp_path / "child"
    said = refused(capsys, folder, "train", run_file, "--fork", fork.format(folder), "--run", child)
    for word in words:
        assert word in said
    assert not child.exists()


def test_a_fork_into_a_run_is_refused(folder, six, run_file, capsys):
    said = refused(capsys, folder, "train", run_file, "--fork", f"{six}@2", "--run", folder)
    assert "holds a run already" in said


def test_a_fork_of_another_model_is_refused_and_says_which_tensors(folder, run_file, tmp_path, capsys):
    child = tmp_path / "child"
    code = cli("train", run_file, "--fork", f"{folder}@4", "hidden_size=32", "--run", child)
    said = capsys.readouterr().err
    assert code == 2, said
    assert "embedding.weight is [257, 16] in it, [257, 32] here" in said
    assert not child.exists()


def test_other_numerics_need_leave_and_the_leave_is_recorded(folder, run_file, capsys):
    said = refused(capsys, folder, "train", run_file, "threads=2", "--run", folder, "--until", 7)
    assert "experiment.numerics.threads" in said
    assert "--accept same-math" in said
    words = ["train", run_file, "threads=2", "--run", folder, "--until", 7, "--accept", "same-math"]
    assert cli(*words, "--quiet") == 0
    attempts = RunFolder.open(folder).attempts()
    assert [attempt.start.accepted for attempt in attempts] == ["", "same math"]
    assert attempts[-1].start.fingerprint["threads"] == "2"
    assert last_end(folder).to_step == 7


def other_fingerprint(folder):
    """Rewrite the newest generation as if other kernels had written it."""
    newest = RunFolder.open(folder).generations()[-1]
    manifest = decode_manifest((newest.path / MANIFEST).read_bytes(), newest.path)
    data = encode_manifest(replace(manifest, fingerprint_digest="e" * 64))
    (newest.path / MANIFEST).write_bytes(data)
    commit = fast_json.decode((newest.path / COMMIT).read_bytes(), type=Commit)
    (newest.path / COMMIT).write_bytes(encode_commit(replace(commit, manifest_digest=manifest_digest(data))))


@pytest.mark.parametrize("ranks", [1, 2])
def test_other_kernels_need_leave(folder, capsys, ranks):
    other_fingerprint(folder)
    capsys.readouterr()
    assert cli("resume", folder, f"ranks={ranks}", "--until", 7) == 2
    said = capsys.readouterr().err
    assert "gives the same math, not the same bits" in said
    assert "--accept same-math" in said
    assert steps_saved(folder) == [2, 4, 6]
    assert cli("resume", folder, "--until", 7, "--accept", "same-math", "--quiet") == 0
    assert RunFolder.open(folder).attempts()[-1].start.accepted == "same math"


def test_what_is_no_run_folder_is_refused(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    for name, words in [("nowhere", "no such run folder"), ("file", "is a file"), ("empty", "no run folder")]:
        assert cli("resume", tmp_path / name) == 2
        assert words in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "file"]


def unbegun(folder, *, keep_events):
    """Make `folder` a run of which no attempt got as far as to start."""
    for name in ("attempts.jsonl", "metrics.jsonl"):
        (folder / name).unlink()
    shutil.rmtree(folder / "generations")
    shutil.rmtree(folder / "ledger")
    if not keep_events:
        (folder / "events.jsonl").unlink()
    return folder


def test_a_run_that_never_began_is_resumed_as_it_was_asked_for(tmp_path, run_file, capsys):
    folder = tmp_path / "run"
    words = ["ranks=1", "checkpoint.every=3", "record.digest_every=7", "steps=9"]
    assert cli("train", run_file, *words, "--run", folder, "--until", 1, "--quiet") == 0
    capsys.readouterr()
    assert cli("resume", unbegun(folder, keep_events=True), "--until", 1) == 0
    start = RunFolder.open(folder).attempts()[-1].start
    assert start.execution["checkpoint"]["every"] == 3
    assert start.execution["record"]["digest_every"] == 7
    assert start.plan["steps"] == 9


def test_a_run_without_any_execution_on_record_is_not_guessed_at(folder, capsys):
    assert "recorded no execution yet" in refused(
        capsys, unbegun(folder, keep_events=False), "resume", folder
    )


def test_a_complete_run_with_a_damaged_end_computes_it_again(folder, reference, capsys):
    newest = RunFolder.open(folder).generations()[-1]
    file = newest.path / "rank-0.bin"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    capsys.readouterr()
    assert cli("resume", folder, "--until", 6) == 0
    said = capsys.readouterr().err
    assert f"note   passed over {newest.name}" in said
    assert re.search(r"^from   step 4, generation 00000004-", said, re.MULTILINE)
    assert RunFolder.open(folder).generations()[-1].step == 6
    assert digests(folder) == reference(6)


def test_nothing_to_do_is_said_unless_quiet(folder, capsys):
    capsys.readouterr()
    assert cli("resume", folder, "--until", 6) == 0
    assert "step 6 is reached already; nothing to do" in capsys.readouterr().err
    assert cli("resume", folder, "--until", 6, "--quiet") == 0
    assert capsys.readouterr().err == ""


def test_an_end_before_the_beginning_is_refused(folder, capsys):
    said = refused(capsys, folder, "resume", folder, "--at", 4, "--until", 3)
    assert "--until 3 lies before --at 4" in said


def test_a_refused_attempt_leaves_no_row_of_an_attempt(folder, capsys):
    other_fingerprint(folder)
    capsys.readouterr()
    before = (folder / "attempts.jsonl").read_bytes()
    assert cli("resume", folder, "--until", 7) == 2
    assert (folder / "attempts.jsonl").read_bytes() == before


def test_what_was_accepted_goes_on_without_asking_again(folder, run_file, capsys):
    words = ["numerics.threads=2", "--run", folder, "--accept", "same-math", "--quiet"]
    assert cli("train", run_file, *words, "--until", 7) == 0
    assert cli("resume", folder, "--until", 8, "--quiet") == 0
    run = RunFolder.open(folder)
    assert run.experiment().numerics.threads == 1
    assert run.present_experiment().numerics.threads == 2
    assert [run.experiment_of(attempt).numerics.threads for attempt in run.attempts()][-2:] == [2, 2]
    assert run.attempts()[-1].start.fingerprint["threads"] == "2"
    assert cli("train", run_file, "numerics.threads=2", "--run", folder, "--until", 9, "--quiet") == 0
    capsys.readouterr()
    assert cli("train", run_file, "--run", folder, "--until", 10) == 2
    assert "--accept same-math" in capsys.readouterr().err


def test_a_damaged_experiment_of_an_attempt_is_named(folder, run_file, capsys):
    words = ["numerics.threads=2", "--run", folder, "--accept", "same-math", "--quiet", "--until", 7]
    assert cli("train", run_file, *words) == 0
    attempts = folder / "attempts.jsonl"
    attempts.write_text(attempts.read_text().replace('"threads":2', '"threads":3'))
    capsys.readouterr()
    assert cli("resume", folder) == 2
    assert f"{attempts}: " in capsys.readouterr().err
