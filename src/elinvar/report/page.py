"""The report: one HTML file that holds everything it shows and fetches nothing.

Noun: the page, a pure function of the run folder. It reads the record and never writes; a folder
that has barely begun, or whose journals are damaged, gives a page that says so. plotly's own
JavaScript is inlined, and a content policy forbids the page to load anything.
"""

from functools import cache
from html import escape
from importlib.resources import files
from pathlib import Path

import msgspec

from elinvar.plan.compute import parameters
from elinvar.report import tables
from elinvar.report.charts import Chart, charts
from elinvar.report.history import History, read_history
from elinvar.report.text import code, count, short_count
from elinvar.report.timeline import timeline
from elinvar.spec.execution import Execution
from elinvar.spec.explain import counted
from elinvar.spec.render import run_file_text

_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; "
    "base-uri 'none'; form-action 'none'"
)


def page(folder: Path) -> str:
    """The page of the run folder at `folder`, as HTML text.

    Raises InvalidInput where `folder` is no run folder or its experiment is damaged.
    """
    return render(read_history(folder))


def render(history: History) -> str:
    """The page of a history that was read already."""
    drawn = charts(history)
    if history.attempts:
        drawn.append(timeline(history))
    name = escape(history.path.name)
    return "\n".join([
        "<!doctype html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        f"<title>{name} · Elinvar</title>",
        f"<style>{_asset('page.css')}</style>",
        "</head>",
        "<body>",
        *_header(history),
        "<main>",
        *_notices(history),
        *_cards(history),
        *_sections(history, {chart.id: chart for chart in drawn}),
        "</main>",
        *_footer(history),
        f"<script>{_plotly()}</script>",
        f'<script id="charts" type="application/json">{_payload(drawn)}</script>',
        f"<script>{_asset('page.js')}</script>",
        "</body>",
        "</html>",
        "",
    ])  # fmt: skip


@cache
def _asset(name: str) -> str:
    return (files("elinvar.report") / "assets" / name).read_text(encoding="utf-8")


@cache
def _plotly() -> str:
    from plotly.offline import get_plotlyjs  # only when a page is made: other commands import this module too

    source: str = get_plotlyjs()
    assert "</script" not in source.lower(), "the library cannot stand inside a script element"
    return source


def _payload(drawn: list[Chart]) -> str:
    """The charts as JSON that cannot end the script element around it."""
    return msgspec.json.encode(drawn).decode().replace("<", "\\u003c")


def _header(history: History) -> list[str]:
    word, tone = history.state
    model = parameters(history.experiment.model)
    width = 100 * min(1.0, history.step / max(1, history.steps))
    said = f"step {history.step} of {history.steps}"
    facts = [
        ("Experiment", code(history.experiment_digest)),
        ("Mathematics", code(history.math_digest)),
        ("Claim", escape(tables.claim(history))),
        ("Model", f"{short_count(model.total)} parameters"),
        ("Data", escape(_data_name(history.experiment.data.source))),
        ("Global batch", f"{count(history.experiment.batch.tokens)} tokens"),
    ]
    last = history.rows[-1].update_digest if history.rows else None
    if last:
        facts.insert(2, (f"State {count(history.rows[-1].step)}", code(last)))
    return [
        "<header>",
        '<p class="mark">Elinvar <span>run report</span></p>',
        f'<div class="title"><h1>{escape(history.path.name)}</h1>{tables.badge(word, tone)}</div>',
        f'<div class="progress" role="img" aria-label="{said}"><span style="width:{width:.2f}%"></span></div>',
        f'<p class="steps"><b>{count(history.step)}</b> of {count(history.steps)} steps</p>',
        "<dl>",
        *(f"<div><dt>{escape(name)}</dt><dd>{value}</dd></div>" for name, value in facts),
        "</dl>",
        "</header>",
    ]


def _data_name(source: str) -> str:
    return source if source.startswith("builtin:") else Path(source).name


def _notices(history: History) -> list[str]:
    if not history.notices:
        return []
    items = "".join(f"<li>{escape(notice)}</li>" for notice in history.notices)
    return [f'<aside class="notices" role="note"><ul>{items}</ul></aside>']


def _cards(history: History) -> list[str]:
    found = tables.cards(history)
    if not found:
        return []
    return [
        '<section class="cards" aria-label="Key numbers">',
        *(
            f'<div class="card"><h3>{escape(label)}</h3><p class="value">{escape(value)}</p>'
            f'<p class="unit">{escape(unit)}</p><p>{escape(remark)}</p></div>'
            for label, value, unit, remark in found
        ),
        "</section>",
    ]


def _sections(history: History, drawn: dict[str, Chart]) -> list[str]:
    html: list[str] = []
    html += _chart_section("Learning", drawn, ("loss", "bits", "norm", "lr"))
    html += _chart_section("Speed and memory", drawn, ("time", "speed", "memory"))
    if history.proof is not None:
        said = "All as promised." if history.proof.ok else "A promise does not hold."
        lead = f"Claim: {history.proof.claim}, over {counted(history.proof.steps, 'step')}. {said}"
        if history.proof.experiment_digest != history.experiment_digest:
            lead += " The proof is of another experiment than this run."
        html += _section("Proof", lead, [tables.proof_table(history)])
    if history.attempts:
        body = [_figure(drawn["timeline"]), tables.attempts_table(history)]
        html += _section(
            "Attempts", "Each launch of the run, and what of it leads to the present state.", body
        )
    if history.generations or history.incomplete:
        lead = "Committed checkpoints. Equal states carry equal digests, whatever wrote them."
        html += _section("Generations", lead, [tables.generations_table(history)])
    html += _samples(history)
    if any(event.kind != "sample_text" for event in history.events):
        html += _events(history)
    html += _setup(history)
    return html


def _section(title: str, lead: str, body: list[str]) -> list[str]:
    heading = f'<section class="part" id="{title.lower().replace(" ", "-")}"><h2>{escape(title)}</h2>'
    return [heading, f'<p class="lead">{escape(lead)}</p>' if lead else "", *body, "</section>"]


def _chart_section(title: str, drawn: dict[str, Chart], ids: tuple[str, ...]) -> list[str]:
    shown = [drawn[name] for name in ids if name in drawn]
    if not shown:
        return []
    # Narrow charts share the width of the page: one, two or three in a row.
    narrow = sum(not chart.wide for chart in shown)
    share = {1: "wide", 2: "half"}.get(narrow, "third")
    figures = [_figure(chart, "wide" if chart.wide else share) for chart in shown]
    return _section(title, "", ['<div class="grid">', *figures, "</div>"])


def _figure(chart: Chart, width: str = "wide") -> str:
    switch = (
        f'<button type="button" class="switch" data-chart="{chart.id}" aria-pressed="false">log scale</button>'
        if chart.log
        else ""
    )
    return (
        f'<figure class="{width}" aria-labelledby="{chart.id}-title">'
        f'<figcaption><div><h3 id="{chart.id}-title">{escape(chart.title)}</h3>'
        f"<p>{escape(chart.unit)}</p></div>{switch}</figcaption>"
        f'<div class="chart" id="chart-{chart.id}" role="img" aria-label="{escape(chart.summary)}" '
        f'style="height:{chart.height}px"></div>'
        f'<details data-table="{chart.id}"><summary>Values</summary></details></figure>'
    )


def _samples(history: History) -> list[str]:
    html: list[str] = []
    for step, texts in tables.samples(history):
        blocks = [f"<blockquote>{escape(text)}</blockquote>" for text in texts]
        lead = f"The first samples of step {step}, as the model reads them."
        html += _section("Samples", lead, ['<div class="samples">', *blocks, "</div>"])
    return html


def _events(history: History) -> list[str]:
    loud = tables.num_loud(history)
    lead = f"{loud} of them ask{'s' if loud == 1 else ''} for attention." if loud else "Nothing unusual."
    number = sum(e.kind != "sample_text" for e in history.events)
    summary = f"<summary>{counted(number, 'event')}</summary>"
    opened = " open" if loud else ""
    return _section("Events", lead, [f"<details{opened}>{summary}{tables.events_table(history)}</details>"])


def _setup(history: History) -> list[str]:
    """The experiment, and the execution of the last attempt, as a run file."""
    blocks = [("Experiment: what is learned", run_file_text(history.experiment))]
    if history.attempts:
        execution = history.attempts[-1].start.execution
        try:
            value = msgspec.convert(execution, Execution)
        except msgspec.ValidationError:
            # Written by a version with other fields: shown as it was recorded.
            text = msgspec.json.format(msgspec.json.encode(execution), indent=2).decode()
        else:
            whole = run_file_text(history.experiment, value)
            text = whole[whole.index("[execution") :]
        blocks.append(("Execution of the last attempt: how it was computed", text))
        command = " ".join(history.attempts[-1].start.command)
        if command:
            blocks.append(("Command of the last attempt", command))
    html = [
        f"<details><summary>{escape(title)}</summary><pre>{escape(text.strip())}</pre></details>"
        for title, text in blocks
    ]
    return _section("Setup", "", html)


def _footer(history: History) -> list[str]:
    versions = history.attempts[-1].start.versions if history.attempts else {}
    said = ", ".join(
        f"{name} {versions[name]}" for name in ("elinvar", "torch", "python") if name in versions
    )
    thesis = "State after a step depends on the experiment and the step, never on how it was computed."
    check = f"Check it: <code>elinvar verify {escape(str(history.path))}</code>"
    without = "The curves are drawn by a script inside this file. Tables and texts show without it."
    return [
        "<footer>",
        f"<p>{escape(said)}</p>" if said else "",
        f"<p>{thesis} {check}</p>",
        f"<noscript><p>{without}</p></noscript>",
        "</footer>",
    ]
