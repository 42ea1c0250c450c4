"""Attempts and generations on one line of steps: who computed what, and what was left behind."""

from typing import Any

from elinvar.record.attempt import Attempt
from elinvar.report.charts import Chart, Trace, attempt_colour, spans
from elinvar.report.history import History
from elinvar.spec.explain import counted

_MOST_ATTEMPTS = 40


def timeline(history: History) -> Chart:
    """A bar a stretch of steps; hollow ones were left behind. Diamonds are generations, where they were written."""
    shown = history.attempts[-_MOST_ATTEMPTS:]
    names = {attempt.attempt: f"attempt {attempt.attempt}" for attempt in shown}
    traces: list[Trace] = []
    kept: dict[int, list[tuple[int, int]]] = {}
    for attempt, start, stop in spans(history):
        kept.setdefault(attempt, []).append((start, stop))
    for number, name in names.items():
        bars = kept.get(number, [])
        if bars:
            traces.append(
                _bars(name, bars, {"color": attempt_colour(number)}, f"{name}: in the present state")
            )
        rows = history.behind.get(number)
        if rows:
            hollow = {
                "color": "rgba(0,0,0,0)", "line": {"color": attempt_colour(number), "width": 1.2},
                "pattern": {"shape": "/", "size": 5, "fgcolor": attempt_colour(number), "solidity": 0.25},
            }  # fmt: skip
            left = [(rows[0].step - 1, rows[-1].step)]
            traces.append(_bars(name, left, hollow, f"{name}: left behind"))
    traces += _generations(history, names)
    last = max([history.step, *(row.step for rows in history.behind.values() for row in rows[-1:]), 1])
    end = max(last, history.steps)
    return Chart(
        id="timeline",
        title="Attempts and generations",
        unit="steps; hollow bars were computed and left behind",
        summary=f"{counted(len(history.attempts), 'attempt')}, {counted(len(history.generations), 'generation')}, step {history.step} "
        f"of {history.steps}.",
        traces=traces,
        layout={
            "barmode": "overlay",
            "showlegend": False,
            "hovermode": "closest",
            "xaxis": {"title": {"text": "step"}, "range": [-0.01 * end, 1.02 * end]},
            "yaxis": {
                "type": "category", "autorange": "reversed", "categoryorder": "array",
                "categoryarray": list(names.values()), "showgrid": False,
            },
            "bargap": 0.45,
        },
        wide=True,
        height=96 + 30 * max(1, len(shown)),
    )  # fmt: skip


def last_step(history: History, attempt: Attempt) -> int:
    """The last step that an attempt finished, as far as the record knows."""
    if attempt.end:
        return attempt.end.to_step
    rows = [row.step for row in history.rows if row.attempt == attempt.attempt]
    rows += [row.step for row in history.behind.get(attempt.attempt, [])]
    return max(rows, default=attempt.from_step)


def _bars(name: str, bars: list[tuple[int, int]], marker: dict[str, Any], label: str) -> Trace:
    return {
        "type": "bar", "orientation": "h", "name": label, "y": [name for _ in bars],
        "x": [stop - start for start, stop in bars], "base": [start for start, _ in bars], "marker": marker,
        "text": [f"steps {start + 1}–{stop}" for start, stop in bars], "textposition": "none",
        "hovertemplate": "%{text}<extra>%{fullData.name}</extra>",
        "customdata": [[start + 1, stop] for start, stop in bars],
    }  # fmt: skip


def _generations(history: History, names: dict[int, str]) -> list[Trace]:
    writers = {
        str(event.data.get("name")): event.attempt for event in history.events if event.kind == "generation"
    }
    x, y, text = [], [], []
    for generation in history.generations:
        name = names.get(writers.get(generation.name, 0))
        if name is not None:
            x.append(generation.step)
            y.append(name)
            text.append(f"generation of step {generation.step}<br>state {generation.update_digest[:12]}")
    if not x:
        return []
    return [
        {
            "type": "scatter", "mode": "markers", "name": "generation", "x": x, "y": y, "text": text,
            "marker": {"symbol": "diamond", "size": 12, "color": "@ink", "line": {"color": "@card", "width": 2}},
            "hovertemplate": "%{text}<extra></extra>", "cliponaxis": False,
        }
    ]  # fmt: skip
