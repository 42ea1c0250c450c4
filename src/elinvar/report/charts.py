"""The charts of a page, as data that the page's script draws.

Noun: `Chart`, a title, a sentence that says what is to be seen, and traces and layout in plotly's
own form. Colours are names ("@blue") which the script looks up in the page's style, so that light
and dark need no second chart. Values are those of the record, thinned but never changed.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any
from zlib import crc32

from msgspec import Struct, field

from elinvar.record.metrics import MetricsRow
from elinvar.report.history import History
from elinvar.report.series import LIMIT, thinned
from elinvar.report.text import duration, number, size

Value = Callable[[MetricsRow], float | None]
Trace = dict[str, Any]

SHAKESPEARE = "builtin:shakespeare"
COMPRESSORS = {"xz": 2.470, "gzip": 3.113}
"""Bits per byte that general compressors need for the built-in text (xz -9e, gzip -9)."""

ATTEMPT_COLOURS = ("@c1", "@c2", "@c3", "@c4", "@c5", "@c6")
PHASE_COLOURS = {
    "compute": "@c1",
    "update": "@c2",
    "exchange": "@c3",
    "digest": "@c4",
    "evaluate": "@c5",
    "capture": "@c6",
    "input": "@c7",
}
"""Phases of a step in the order in which they are stacked: a phase has one colour in all reports."""

_MOST_PHASES = 7
_MARKED_POINTS = 60
_MARK_HEIGHT = 0.035


class Chart(Struct, frozen=True, kw_only=True):
    """One drawing. `wide` charts take the whole width; `log` ones get a switch of their y axis."""

    id: str
    title: str
    unit: str
    summary: str
    traces: list[Trace]
    layout: dict[str, Any] = field(default_factory=dict)
    wide: bool = False
    log: bool = False
    height: int = 250

    @property
    def is_empty(self) -> bool:
        """Whether no trace of data has a point."""
        return not any(trace["x"] for trace in self.traces if not trace.get("meta", {}).get("mark"))


def charts(history: History) -> list[Chart]:
    """All charts that the record has data for, in reading order."""
    drawn = [
        _loss(history),
        _bits_per_byte(history),
        _curve(history, "lr", "Learning rate", "as used", lambda row: row.lr, "@c3"),
        _curve(
            history, "norm", "Gradient norm", "before clipping", lambda row: row.grad_norm, "@c4", log=True
        ),
        _curve(
            history,
            "speed",
            "Throughput",
            "target tokens per second",
            lambda r: r.tokens_per_s or None,
            "@c1",
            tickformat="~s",
        ),
        _step_time(history),
        _memory(history),
    ]
    return [chart for chart in drawn if not chart.is_empty]


def attempt_colour(attempt: int) -> str:
    """The colour of an attempt, the same wherever it is drawn."""
    return ATTEMPT_COLOURS[(attempt - 1) % len(ATTEMPT_COLOURS)]


def spans(history: History) -> list[tuple[int, int, int]]:
    """(attempt, from step, to step) of the stretches that lead to the present state, in order."""
    found: list[tuple[int, int, int]] = []
    for row in history.rows:
        if found and found[-1][0] == row.attempt:
            found[-1] = (row.attempt, found[-1][1], row.step)
        else:
            found.append((row.attempt, row.step - 1, row.step))
    return found


def _points(
    rows: Sequence[MetricsRow], value: Value, limit: int = LIMIT
) -> tuple[list[int], list[float | None]]:
    values = [value(row) for row in rows]
    kept = thinned(values, limit)
    return [rows[index].step for index in kept], [values[index] for index in kept]


def _line(name: str, x: list[int], y: list[float | None], colour: str, **more: Any) -> Trace:
    few = sum(value is not None for value in y) <= _MARKED_POINTS
    return {
        "type": "scatter",
        "mode": "lines+markers" if few else "lines",
        "name": name,
        "x": x,
        "y": y,
        "line": {"color": colour, "width": 1.8},
        "marker": {"color": colour, "size": 5},
        "hovertemplate": "%{y:.6g}",
        **more,
    }


def _curves(history: History, name: str, value: Value, colour: str) -> list[Trace]:
    """The rows left behind, thin and dotted, and in front of them the curve of the present state."""
    traces = []
    share = max(5, LIMIT // max(1, len(history.behind)))
    for attempt, rows in history.behind.items():
        x, y = _points(rows, value, share)
        if any(v is not None for v in y):
            line = {"color": colour, "width": 1.4, "dash": "dot"}
            left = f"{name}, left behind (attempt {attempt})"
            mode = "lines" if len(x) > 1 else "markers"
            traces.append(_line(left, x, y, colour, line=line, opacity=0.55, mode=mode, showlegend=False))
    x, y = _points(history.rows, value)
    if any(v is not None for v in y):
        traces.append(_line(name, x, y, colour))
    return traces


def _marks(history: History) -> list[Trace]:
    """Generations and skipped steps, on an axis of their own at the bottom of a chart."""
    marks = []
    if history.generations:
        marks.append(
            {
                "type": "scatter", "mode": "markers", "name": "generation", "yaxis": "y2", "cliponaxis": False,
                "x": [generation.step for generation in history.generations],
                "y": [_MARK_HEIGHT for _ in history.generations],
                "text": [f"state {generation.update_digest[:12]}" for generation in history.generations],
                "marker": {"symbol": "diamond", "size": 9, "color": "@ink", "line": {"color": "@card", "width": 1.5}},
                "hovertemplate": "%{text}", "meta": {"mark": True},
            }
        )  # fmt: skip
    skipped = [row.step for row in history.rows if row.skipped][:LIMIT]
    if skipped:
        marks.append(
            {
                "type": "scatter", "mode": "markers", "name": "skipped step", "yaxis": "y2", "cliponaxis": False,
                "x": skipped, "y": [_MARK_HEIGHT for _ in skipped],
                "marker": {"symbol": "x", "size": 9, "color": "@bad"},
                "hovertemplate": "skipped", "meta": {"mark": True},
            }
        )  # fmt: skip
    return marks


def _layout(history: History, **axis: Any) -> dict[str, Any]:
    last = max(
        [history.step, *(row.step for rows in history.behind.values() for row in rows[-1:]), 1],
    )
    first = history.rows[0].step if history.rows else 0
    bands = [
        {
            "type": "rect", "xref": "x", "yref": "paper", "layer": "below", "line": {"width": 0},
            "x0": start, "x1": stop, "y0": 0, "y1": 1, "fillcolor": attempt_colour(attempt), "opacity": 0.07,
        }
        for attempt, start, stop in spans(history)
    ]  # fmt: skip
    margin = max(1.0, (last - first) * 0.015)
    return {
        "shapes": bands if len({attempt for attempt, _, _ in spans(history)}) > 1 else [],
        "xaxis": {"title": {"text": "step"}, "range": [min(first, last) - margin, last + margin]},
        "yaxis": axis,
        "yaxis2": {"overlaying": "y", "range": [0, 1], "visible": False, "fixedrange": True},
    }


def _ends(rows: Iterable[MetricsRow], value: Value) -> tuple[tuple[int, float], tuple[int, float]] | None:
    known = [(row.step, v) for row in rows if (v := value(row)) is not None]
    return (known[0], known[-1]) if known else None


def _summary(what: str, history: History, value: Value) -> str:
    ends = _ends(history.rows, value)
    if ends is None:
        return f"{what}: no values."
    (first, low), (last, high) = ends
    if first == last:
        return f"{what}: {number(low)} at step {first}."
    return f"{what}: from {number(low)} at step {first} to {number(high)} at step {last}."


def _dotted(history: History) -> str:
    return " · dotted: left behind" if history.behind else ""


def _curve(
    history: History,
    name: str,
    title: str,
    unit: str,
    value: Value,
    colour: str,
    *,
    log: bool = False,
    **axis: Any,
) -> Chart:
    return Chart(
        id=name,
        title=title,
        unit=unit + _dotted(history),
        summary=_summary(title, history, value),
        traces=_curves(history, title.lower(), value, colour),
        layout=_layout(history, rangemode="tozero", **axis),
        log=log,
    )


def _held_out(row: MetricsRow) -> float | None:
    return row.evaluation.loss if row.evaluation else None


def _evaluations(history: History, name: str, value: Value, colour: str) -> list[Trace]:
    """The evaluated rows only: a curve through a few points, not a line full of gaps."""
    traces = []
    share = max(5, LIMIT // max(1, len(history.behind)))
    for attempt, rows in history.behind.items():
        x, y = _points([row for row in rows if row.evaluation], value, share)
        if x:
            marker = {"color": colour, "symbol": "circle-open", "size": 7}
            left = f"{name}, left behind (attempt {attempt})"
            traces.append(
                _line(left, x, y, colour, mode="markers", opacity=0.55, marker=marker, showlegend=False)
            )
    x, y = _points([row for row in history.rows if row.evaluation], value)
    if x:
        traces.append(_line(name, x, y, colour, mode="lines+markers"))
    return traces


def _loss(history: History) -> Chart:
    traces = [
        *_curves(history, "training", lambda row: row.loss, "@c1"),
        *_evaluations(history, "held out", _held_out, "@c2"),
        *_marks(history),
    ]
    return Chart(
        id="loss",
        title="Loss",
        unit="nats per target token" + _dotted(history),
        summary=_summary("Training loss", history, lambda row: row.loss)
        + " "
        + _summary("Held-out loss", history, _held_out),
        traces=traces,
        layout={**_layout(history), "showlegend": True},
        wide=True,
        log=True,
        height=390,
    )


def _bits_per_byte(history: History) -> Chart:
    def bits(row: MetricsRow) -> float | None:
        return row.evaluation.bits_per_byte if row.evaluation else None

    traces = _evaluations(history, "held out", bits, "@c2")
    layout = _layout(history)
    if history.experiment.data.source == SHAKESPEARE and traces:
        layout["annotations"] = [
            {
                # Beside the lines, where no curve passes.
                "xref": "paper", "x": 1.01, "xanchor": "left", "y": bits_needed, "yanchor": "middle",
                "text": f"{name} {bits_needed:.3f}", "showarrow": False, "font": {"color": "@quiet", "size": 11},
            }
            for name, bits_needed in COMPRESSORS.items()
        ]  # fmt: skip
        for bits_needed in COMPRESSORS.values():
            layout["shapes"] = [
                *layout["shapes"],
                {
                    "type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": bits_needed, "y1": bits_needed,
                    "line": {"color": "@quiet", "width": 1.2, "dash": "dash"},
                },
            ]  # fmt: skip
        known = [value for trace in traces for value in trace["y"] if value is not None]
        low, high = min([*known, *COMPRESSORS.values()]), max([*known, *COMPRESSORS.values()])
        layout["margin"] = {"l": 46, "r": 66, "t": 8, "b": 34}
        layout["yaxis"] = {"range": [low - 0.08 * (high - low), high + 0.08 * (high - low)]}
    return Chart(
        id="bits",
        title="Bits per byte, held out",
        unit="xz and gzip on the same text" if traces and "annotations" in layout else "of text",
        summary=_summary("Held-out bits per byte", history, bits),
        traces=traces,
        layout=layout,
    )


def _step_time(history: History) -> Chart:
    rows = [row for row in history.rows if row.times]
    kept = [rows[index] for index in thinned([row.step_time_s for row in rows])]
    totals: dict[str, float] = {}
    for row in rows:
        for phase, seconds in row.times.items():
            totals[phase] = totals.get(phase, 0.0) + seconds
    known = [phase for phase in PHASE_COLOURS if phase in totals]
    others = sorted(totals.keys() - PHASE_COLOURS.keys(), key=lambda phase: (-totals[phase], phase))
    named, rest = [*known, *others][:_MOST_PHASES], [*known, *others][_MOST_PHASES:]
    x = [row.step for row in kept]
    traces = [
        _stacked(phase.replace("_", " "), x, [row.times.get(phase, 0.0) for row in kept], phase_colour(phase))
        for phase in named
    ]
    remainders = [
        max(0.0, row.step_time_s - sum(row.times.get(phase, 0.0) for phase in named)) for row in kept
    ]
    if rest or any(remainders):
        traces.append(_stacked("everything else", x, remainders, "@quiet"))
    whole = sum(row.step_time_s for row in rows)
    largest = sorted(named, key=lambda phase: (-totals[phase], phase))[:3]
    shares = [f"{phase.replace('_', ' ')} {100 * totals[phase] / whole:.0f} %" for phase in largest if whole]
    return Chart(
        id="time",
        title="Step time by phase",
        unit="seconds, stacked",
        summary=f"Step time: {duration(whole / len(rows)) if rows else 'none'} on average. {', '.join(shares)}.",
        traces=traces,
        layout={**_layout(history, rangemode="tozero"), "showlegend": True},
        wide=True,
        height=290,
    )


def phase_colour(phase: str) -> str:
    """The colour of a phase; of one that is not known here, a colour that only its name decides."""
    colours = tuple(PHASE_COLOURS.values())
    return PHASE_COLOURS.get(phase) or colours[crc32(phase.encode()) % len(colours)]


def _stacked(name: str, x: list[int], y: list[float], colour: str) -> Trace:
    return {
        "type": "scatter", "mode": "lines", "stackgroup": "step", "name": name, "x": x, "y": y,
        "line": {"color": colour, "width": 0.8}, "fillcolor": colour, "hovertemplate": "%{y:.4g} s",
    }  # fmt: skip


def _memory(history: History) -> Chart:
    def peak(row: MetricsRow) -> float | None:
        return row.peak_rss_bytes or None

    traces = _curves(history, "measured peak", peak, "@c5")
    planned = planned_memory(history)
    x: list[int | None] = []
    y: list[int | None] = []
    for attempt, start, stop in spans(history):
        if attempt in planned:
            steps = sorted({start + 1, stop})
            x += [*steps, None]
            y += [planned[attempt] for _ in steps] + [None]
    if x and traces:
        traces.append({
            "type": "scatter", "mode": "lines", "name": "planned", "x": x, "y": y,
            "line": {"color": "@quiet", "width": 1.6, "dash": "dash"}, "hovertemplate": "%{y:,} B",
        })  # fmt: skip
    known = [value for trace in traces for value in trace["y"] if value is not None]
    measured = max((row.peak_rss_bytes for row in history.rows), default=0)
    plan = max(planned.values(), default=0)
    return Chart(
        id="memory",
        title="Memory",
        unit="peak resident set of the largest rank" + _dotted(history),
        summary=f"Peak memory: {size(measured)} measured" + (f", {size(plan)} planned." if plan else "."),
        traces=traces,
        layout={
            **_layout(history, rangemode="tozero", **_byte_ticks(max(known, default=0))),
            "showlegend": True,
        },
    )


def planned_memory(history: History) -> dict[int, int]:
    """Bytes that the plan of each attempt gave its largest rank, by attempt."""
    return {
        attempt.attempt: planned
        for attempt in history.attempts
        if isinstance(planned := attempt.start.plan.get("memory_bytes"), int) and planned > 0
    }


def _byte_ticks(most: float) -> dict[str, Any]:
    step = 1
    while step * 6 < most:
        step *= 2
    values = [step * index for index in range(int(most // step) + 2)]
    return {"tickvals": values, "ticktext": [size(value) for value in values]}
