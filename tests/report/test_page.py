"""The page shows the record: every value exact, the present state in front, damage said, nothing fetched."""

import json
import re
import shutil
import subprocess
import sys

import msgspec
import pytest

from elinvar.errors import InvalidInput
from elinvar.record.manifest import list_generations
from elinvar.report.charts import charts
from elinvar.report.history import read_history
from elinvar.report.page import page
from elinvar.spec.canonical import experiment_digest


def payload(html):
    return {
        c["id"]: c
        for c in json.loads(re.search(r'<script id="charts"[^>]*>(.*?)</script>', html, re.DOTALL)[1])
    }


def own(html):
    """The page without the library."""
    return re.sub(r"<script>/\*\*\s*\n\* plotly.*?</script>", "", html, flags=re.DOTALL)


def curve(chart, name):
    [trace] = [trace for trace in chart["traces"] if trace["name"] == name]
    return dict(zip(trace["x"], trace["y"], strict=True))


def copy(folder, path):
    shutil.copytree(folder.path, path)
    return path


@pytest.fixture(scope="module")
def html(eventful):
    return page(eventful.path)


def test_every_value_of_the_present_state_is_in_the_page_exactly(html, eventful):
    drawn = payload(html)
    last = {}
    for row in eventful.metrics()[0]:
        last[row.step] = row
    assert curve(drawn["loss"], "training") == {step: row.loss for step, row in last.items()}
    assert curve(drawn["norm"], "gradient norm") == {step: row.grad_norm for step, row in last.items()}
    assert curve(drawn["lr"], "learning rate") == {step: row.lr for step, row in last.items()}
    assert curve(drawn["speed"], "throughput") == {step: row.tokens_per_s for step, row in last.items()}
    assert curve(drawn["memory"], "measured peak") == {step: row.peak_rss_bytes for step, row in last.items()}
    for phase in ("input", "forward_backward", "exchange", "update"):
        found = curve(drawn["time"], phase.replace("_", " "))
        assert found == {step: row.times[phase] for step, row in last.items()}
    bits = {step: row.evaluation.bits_per_byte for step, row in last.items() if row.evaluation}
    assert curve(drawn["bits"], "held out") == bits


def test_each_curve_goes_forward_in_steps(html):
    for chart in payload(html).values():
        for trace in chart["traces"]:
            if (
                trace["type"] == "scatter"
                and not trace.get("meta", {}).get("mark")
                and chart["id"] != "timeline"
            ):
                steps = [step for step in trace["x"] if step is not None]
                assert steps == sorted(set(steps)), (chart["id"], trace["name"])


def test_values_left_behind_are_kept_behind_those_of_the_later_attempt(tmp_path, runs):
    folder = runs.fresh_folder(tmp_path / "a")
    journals = folder.journals()
    journals.attempts.append(runs.start(1, 0, 2))
    runs.run_steps(journals, 1, 1, 30, loss=5.5)
    journals.attempts.append(runs.start(2, 20, 2))
    runs.run_steps(journals, 2, 21, 25, loss=4.5)
    journals.close()
    drawn = payload(page(folder.path))["loss"]
    assert curve(drawn, "training") == {s: 5.5 if s <= 20 else 4.5 for s in range(1, 26)}
    assert curve(drawn, "training, left behind (attempt 1)") == dict.fromkeys(range(21, 31), 5.5)
    names = [trace["name"] for trace in drawn["traces"]]
    # Later traces are drawn over earlier ones.
    assert names.index("training, left behind (attempt 1)") < names.index("training")
    bands = [s for s in drawn["layout"]["shapes"] if s["type"] == "rect"]
    assert [(band["x0"], band["x1"]) for band in bands] == [(0, 20), (20, 25)]


def test_rows_of_an_attempt_that_went_nowhere_stay_left_behind(tmp_path, runs):
    # Attempt 2 went back to 10 and died; attempt 3 goes on from the generation of step 30 that attempt 1 wrote.
    folder = runs.fresh_folder(tmp_path / "a")
    journals = folder.journals()
    journals.attempts.append(runs.start(1, 0, 2))
    runs.run_steps(journals, 1, 1, 30, loss=5.5)
    name = runs.commit(folder, 30, 1, 1, journals)
    journals.attempts.append(runs.start(2, 10, 2))
    runs.run_steps(journals, 2, 11, 20, loss=4.5)
    journals.attempts.append(runs.start(3, 30, 2, parent_generation=name))
    runs.run_steps(journals, 3, 31, 32, loss=3.5)
    journals.close()
    drawn = payload(page(folder.path))["loss"]
    assert curve(drawn, "training") == dict.fromkeys(range(1, 31), 5.5) | {31: 3.5, 32: 3.5}
    assert curve(drawn, "training, left behind (attempt 2)") == dict.fromkeys(range(11, 21), 4.5)


def test_a_long_run_stays_small_and_keeps_its_spike(tmp_path, runs):
    folder = runs.fresh_folder(tmp_path / "a")
    journals = folder.journals()
    journals.attempts.append(runs.start(1, 0, 2))
    row = runs.metrics_row(1, 25)
    lines = [
        msgspec.json.encode(
            msgspec.structs.replace(
                row, step=step, loss=2.0 + 0.3 * runs.noise(step, 9), grad_norm=1.0 + runs.noise(step, 8) / 3
            )
        )
        for step in range(1, 20_001)
    ]
    lines[7_776] = msgspec.json.encode(msgspec.structs.replace(row, step=7_777, loss=20.123456789012345))
    journals.close()
    folder.metrics_path.write_bytes(b"\n".join(lines) + b"\n")
    html = page(folder.path)
    assert curve(payload(html)["loss"], "training")[7_777] == 20.123456789012345
    assert all(len(trace["x"]) <= 2000 for c in payload(html).values() for trace in c["traces"])
    assert len(html.encode()) <= 6_000_000


def test_the_page_fetches_nothing_and_says_so(html):
    assert "default-src 'none'" in html
    assert re.search(r"<(?:link|img|iframe|script|object|embed)[^>]*\s(?:src|href)=", own(html)) is None
    assert "http://" not in own(html)
    assert "https://" not in own(html)
    assert "url(" not in own(html)


def test_text_of_the_record_is_text_on_the_page(html):
    assert "<script>alert(1)" not in html
    assert "&lt;/script&gt;&lt;script&gt;alert(1)&lt;/script&gt; &amp; &lt;b&gt;not bold&lt;/b&gt;" in html


def test_a_name_of_the_record_cannot_end_the_script_that_holds_the_charts(tmp_path, runs):
    folder = runs.fresh_folder(tmp_path / "a")
    journals = folder.journals()
    journals.attempts.append(runs.start(1, 0, 2))
    runs.run_steps(journals, 1, 1, 3, times={"</script><b>": 0.1})
    journals.close()
    html = page(folder.path)
    assert curve(payload(html)["time"], "</script><b>") == {1: 0.1, 2: 0.1, 3: 0.1}
    assert "</script><b>" not in html


def test_the_header_and_tables_name_what_the_record_names(html, eventful, runs):
    digest = experiment_digest(eventful.experiment())
    assert f'title="{digest}">{digest[:12]}' in html
    assert "<b>200</b> of 200 steps" in html
    for word in (
        "completed",
        "stopped",
        "killed",
        "same bits",
        "builtin:shakespeare",
        "xz 2.470",
        "gzip 3.113",
    ):
        assert word in html
    for generation in list_generations(eventful.generations_path):
        assert f'title="{generation.update_digest}"' in html
    assert html.count("same digest") == 5
    assert html.count(">holds<") == 7
    assert "rank 2 was lost: exit code -9" in html
    assert "gradient is not finite" in html
    assert "Not so, my lord" in html
    assert "[experiment.model]" in html
    assert "[execution.checkpoint]" in html
    marks = [t for t in payload(html)["loss"]["traces"] if t.get("meta", {}).get("mark")]
    assert [(t["name"], t["x"]) for t in marks] == [
        ("generation", [50, 100, 120, 150, 200]),
        ("skipped step", [77]),
    ]


def test_a_run_that_never_started_has_a_page_that_says_so(tmp_path, runs):
    html = page(runs.fresh_folder(tmp_path / "a").path)
    assert "created, never started" in html
    assert "No step has been recorded yet" in html
    assert payload(html) == {}


def test_a_run_in_its_first_moments(tmp_path, runs):
    folder = runs.fresh_folder(tmp_path / "a")
    journals = folder.journals()
    journals.attempts.append(runs.start(1, 0, 2))
    with folder.lock():
        assert ">starting<" in page(folder.path)
        runs.run_steps(journals, 1, 1, 1)
        html = page(folder.path)
        assert ">running<" in html
        assert "No step" not in html
        assert curve(payload(html)["loss"], "training") == {1: runs.loss_of(1)}
        assert payload(html)["loss"]["traces"][0]["mode"] == "lines+markers"
    assert ">killed<" in page(folder.path)
    journals.close()


def test_damaged_lines_are_counted_and_the_rest_is_shown(tmp_path, eventful):
    path = copy(eventful, tmp_path / "a")
    whole = (path / "metrics.jsonl").read_bytes().split(b"\n")
    whole[9] = whole[9][:50]
    whole[12] = b"\x00" * 80
    (path / "metrics.jsonl").write_bytes(b"\n".join(whole)[:-20])
    (path / "events.jsonl").write_bytes(b"{\n" + (path / "events.jsonl").read_bytes())
    (path / "proof.json").write_text("{")
    (next((path / "generations").iterdir()) / "commit.json").write_text("")
    html = page(path)
    assert "3 lines of metrics.jsonl could not be read and are left out." in html
    assert "1 line of events.jsonl could not be read and is left out." in html
    assert "The proof is left out" in html
    assert ">incomplete<" in html
    steps = curve(payload(html)["loss"], "training")
    assert 10 not in steps
    assert 199 in steps


def test_a_run_of_skipped_steps_only(tmp_path, runs):
    folder = runs.fresh_folder(tmp_path / "a")
    journals = folder.journals()
    journals.attempts.append(runs.start(1, 0, 2))
    runs.run_steps(journals, 1, 1, 3, loss=None, grad_norm=None, skipped=True)
    journals.close()
    html = page(folder.path)
    assert "loss" not in payload(html) or payload(html)["loss"]["traces"]
    assert "lr" in payload(html)


def test_what_a_state_is_called(tmp_path, runs):
    folder = runs.fresh_folder(tmp_path / "a")
    journals = folder.journals()
    journals.attempts.append(runs.start(1, 0, 2))
    for reason, said in (("failed", "failed"), ("until", "paused at its step"), ("unheard of", "unheard of")):
        journals.attempts.append(runs.AttemptEnd(attempt=1, time_s=1.0, to_step=0, reason=reason))
        assert read_history(folder.path).state[0] == said
    journals.close()


def test_a_state_that_differs_from_the_recorded_digest_is_shown_in_red(tmp_path, eventful):
    path = copy(eventful, tmp_path / "a")
    text = (path / "metrics.jsonl").read_text()
    [row] = [line for line in text.split("\n") if '"step":150,' in line]
    digest = json.loads(row)["update_digest"]
    (path / "metrics.jsonl").write_text(text.replace(digest, "f" * 64))
    html = page(path)
    assert html.count("another digest") == 1
    assert html.count("same digest") == 4


def test_other_data_has_no_lines_of_compressors(tmp_path, runs):
    text = tmp_path / "mine.txt"
    text.write_text("To be, or not to be, that is the question.\n" * 200)
    folder = runs.fresh_folder(tmp_path / "a", [f"experiment.data.source={text}"])
    journals = folder.journals()
    journals.attempts.append(runs.start(1, 0, 2))
    runs.run_steps(journals, 1, 1, 50)
    journals.close()
    html = page(folder.path)
    assert "2.470" not in html.split("<script>")[0]
    assert "annotations" not in payload(html)["bits"]["layout"]
    assert "mine.txt" in html


def test_a_verdict_stands_before_its_case(html):
    rows = re.findall(r"<tr>(.*?)</tr>", html[html.index('aria-label="Proof"') :], re.DOTALL)
    assert rows[1].index(">holds<") < rows[1].index("1 rank")


def test_a_phase_has_one_colour_whatever_takes_longest(tmp_path, runs):
    found = []
    for name, times in (
        ("a", {"input": 9.0, "compute": 1.0, "of_another_version": 0.5}),
        ("b", {"compute": 9.0, "update": 3.0, "of_another_version": 7.0, "input": 1.0}),
    ):
        folder = runs.fresh_folder(tmp_path / name)
        journals = folder.journals()
        journals.attempts.append(runs.start(1, 0, 2))
        runs.run_steps(journals, 1, 1, 3, times=times)
        journals.close()
        traces = payload(page(folder.path))["time"]["traces"]
        found.append({trace["name"]: trace["fillcolor"] for trace in traces})
    one, other = found
    assert list(one)[:3] == ["compute", "input", "of another version"]
    assert {name: one[name] for name in list(one)[:3]}.items() <= other.items()


def test_what_is_no_run_folder_is_refused(tmp_path):
    with pytest.raises(InvalidInput, match="no run folder"):
        page(tmp_path)


def test_charts_are_values_of_plain_json(eventful):
    for chart in charts(read_history(eventful.path)):
        assert msgspec.json.decode(msgspec.json.encode(chart), type=type(chart)) == chart


def test_neither_torch_nor_numpy_is_imported():
    code = "import sys, elinvar.report.page, elinvar.cli.report; print({'torch', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
