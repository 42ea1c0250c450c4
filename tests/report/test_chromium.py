"""The page in a real browser: no error, nothing refused or fetched, every chart drawn, tables exact."""

import os
import re
import shutil
import subprocess

import pytest

from elinvar.report.page import page

pytestmark = pytest.mark.chromium

FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
    "--enable-logging=stderr", "--v=0", "--window-size=1280,2400", "--virtual-time-budget=3000",
]  # fmt: skip

LIBRARY = re.compile(r"<script>/\*\*\s*\n\* plotly.*?</script>", re.DOTALL)


@pytest.fixture(scope="module")
def browser():
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        if os.environ.get("CI") or os.environ.get("ELINVAR_REQUIRE_CHROMIUM"):
            pytest.fail(
                "Chromium is required here (CI or ELINVAR_REQUIRE_CHROMIUM is set) and is not on PATH"
            )
        pytest.skip("no chromium on PATH")
    return found


def opened(browser, html, tmp_path):
    """The document after its scripts have run, and what the browser's console said."""
    file = tmp_path / "report.html"
    file.write_text(html)
    done = subprocess.run(
        [browser, *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", f"file://{file}"],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    # Without the library, whose text holds everything that one might look for.
    return LIBRARY.sub("", done.stdout), console


# What a reader would do, done by the page itself at its end: open every table, press every switch, and say what is there.
READER = """<script>
setTimeout(async () => {
  for (const details of document.querySelectorAll("details")) details.open = true;
  for (const button of document.querySelectorAll(".switch")) button.click();
  await new Promise((resolve) => setTimeout(resolve, 1000));
  const root = document.documentElement;
  root.dataset.curves = document.querySelectorAll(".chart .scatterlayer .trace").length;
  root.dataset.bars = document.querySelectorAll(".chart .bars .point").length;
  root.dataset.tables = document.querySelectorAll("details[data-table] table").length;
  const proof = document.querySelector("#proof .scroll");
  root.dataset.proof = `${proof.scrollWidth <= proof.clientWidth}`;
  root.dataset.loss = document.querySelectorAll('details[data-table="loss"] tbody tr').length;
  document.body.style.width = "420px";
  window.dispatchEvent(new Event("resize"));
  await new Promise((resolve) => setTimeout(resolve, 700));
  root.dataset.drawing = String(document.querySelector("#chart-loss svg").getBoundingClientRect().width);
  root.dataset.frame = String(document.querySelector("#chart-loss").getBoundingClientRect().width);
  root.dataset.wide = String(root.scrollWidth > root.clientWidth);
}, 500);
</script></body>"""


def test_the_page_of_an_eventful_run(browser, tmp_path, eventful):
    html = page(eventful.path)
    dom, console = opened(browser, html.replace("</body>", READER), tmp_path)
    root = dict(re.findall(r'data-(\w+)="([^"]*)"', re.search(r"<html[^>]*>", dom)[0]))
    assert console == []
    assert "problems" not in root
    assert root["drawn"] == "8"
    assert root["tables"] == "8"
    assert root["loss"] == "200"
    assert root["bars"] == "4"
    assert int(root["curves"]) >= 20
    assert root["wide"] == "false"
    assert root["proof"] == "true"  # the whole table fits into 1280 pixels, verdicts included
    # Drawn anew when the window became narrow.
    assert float(root["drawing"]) <= float(root["frame"]) < 420
    # A value in full, in its row of the table of the loss.
    [row] = [row for row in eventful.metrics()[0] if (row.attempt, row.step) == (3, 133)]
    cells = re.search(r'data-table="loss".*?(<tr><td class="num">133</td>.*?</tr>)', dom, re.DOTALL)[1]
    assert f">{row.loss!r}<" in cells


def test_the_page_of_a_run_that_has_barely_begun(browser, tmp_path, runs):
    folder = runs.fresh_folder(tmp_path / "a")
    journals = folder.journals()
    journals.attempts.append(runs.start(1, 0, 2))
    runs.run_steps(journals, 1, 1, 1)
    journals.close()
    dom, console = opened(browser, page(folder.path), tmp_path)
    assert console == []
    assert "data-problems" not in dom
    assert 'data-drawn="7"' in dom


def test_an_error_of_the_page_would_be_seen(browser, tmp_path, runs):
    # The instruments of the two tests above, on a page that is broken on purpose.
    html = LIBRARY.sub("", page(runs.fresh_folder(tmp_path / "a").path))
    bad = '<script>setTimeout(() => { throw new Error("seen"); }); fetch("https://example.org/x").catch(() => 0);</script>'
    dom, console = opened(browser, html.replace("</body>", f"{bad}</body>"), tmp_path)
    assert "seen" in "".join(console)
    assert re.search(r'data-problems="[^"]*seen', dom)
    assert re.search(r'data-problems="[^"]*refused https://example.org', dom)
