"""The tables and cards of a page: attempts, generations, proof, events, samples, as HTML text.

Everything that comes from the record is escaped; a cell holds one value.
"""

from collections.abc import Iterable, Sequence
from html import escape
from statistics import median
from typing import Any

from elinvar.identity import is_digest
from elinvar.plan.claim import claim_across_executions
from elinvar.plan.machine import THIS
from elinvar.record.attempt import Attempt
from elinvar.record.events import Event
from elinvar.record.manifest import Generation
from elinvar.report.charts import COMPRESSORS, SHAKESPEARE, attempt_colour, planned_memory
from elinvar.report.history import History
from elinvar.report.text import code, count, duration, moment, number, short_count, size
from elinvar.report.timeline import last_step
from elinvar.spec.explain import counted

_MOST_EVENTS = 400
_LOUD = ("fault", "retry", "skipped_step", "discarded", "torn_line")


def table(
    caption: str,
    heads: Sequence[str],
    rows: Iterable[Sequence[str]],
    right: Sequence[int] = (),
    wrapped: Sequence[int] = (),
) -> str:
    """A table of HTML cells; `right` are the columns of numbers, `wrapped` those of long names."""
    kinds = [
        ("num" if column in right else "long" if column in wrapped else "") for column in range(len(heads))
    ]
    ends = [f'class="{kind}"' if kind else "" for kind in kinds]
    head = "".join(
        f'<th scope="col" {end}>{escape(name)}</th>' for name, end in zip(heads, ends, strict=True)
    )
    body = "".join(
        "<tr>" + "".join(f"<td {end}>{cell}</td>" for cell, end in zip(row, ends, strict=True)) + "</tr>"
        for row in rows
    )
    return (
        (
            f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}"><table>'
            f'<caption class="unseen">{escape(caption)}</caption>'
            f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
        )
        .replace("<th  ", "<th ")
        .replace(" >", ">")
    )


def badge(text: str, tone: str) -> str:
    """A word in a coloured frame; the colour only repeats what the word says."""
    return f'<span class="badge {tone}">{escape(text)}</span>'


def claim(history: History) -> str:
    """What is promised about this run, in words."""
    relation = claim_across_executions(history.experiment).relation
    crossed = [attempt.from_step for attempt in history.attempts if attempt.start.accepted]
    return f"same math since step {crossed[0]}" if crossed and relation == "same bits" else relation


def cards(history: History) -> list[tuple[str, str, str, str]]:
    """(label, number, unit, remark) of each key number; those without data are left out."""
    found = [
        _loss_card(history), _bits_card(history), _speed_card(history), _tokens_card(history),
        _memory_card(history), _attempts_card(history), _proof_card(history),
    ]  # fmt: skip
    return [card for card in found if card is not None]


Card = tuple[str, str, str, str] | None


def _loss_card(history: History) -> Card:
    known = [row for row in history.rows if row.loss is not None]
    if not known:
        return None
    remark = (
        f"{number(known[0].loss)} at step {known[0].step}" if len(known) > 1 else f"at step {known[0].step}"
    )
    return "Training loss", number(known[-1].loss), "nats / token", remark


def _bits_card(history: History) -> Card:
    measured = [row.evaluation for row in history.rows if row.evaluation]
    if not measured:
        return None
    remark = f"loss {number(measured[-1].loss)} nats / token"
    if history.experiment.data.source == SHAKESPEARE:
        remark = f"xz needs {COMPRESSORS['xz']:.3f}"
    return "Held out", f"{measured[-1].bits_per_byte:.3f}", "bits / byte", remark


def _speed_card(history: History) -> Card:
    last = [row for row in history.rows if row.attempt == history.rows[-1].attempt]
    rates = [row.tokens_per_s for row in last if row.tokens_per_s > 0]
    if not rates:
        return None
    times = [row.step_time_s for row in last if row.step_time_s > 0]
    remark = f"{duration(median(times))} a step" if times else "median"
    return "Throughput", short_count(median(rates)), "tokens / s", remark


def _tokens_card(history: History) -> Card:
    tokens = sum(row.tokens for row in history.rows)
    if not tokens:
        return None
    return "Learned from", short_count(tokens), "target tokens", f"of {short_count(_tokens_planned(history))}"


def _tokens_planned(history: History) -> int:
    return history.steps * history.experiment.batch.tokens


def _memory_card(history: History) -> Card:
    peak = max((row.peak_rss_bytes for row in history.rows), default=0)
    if not peak:
        return None
    planned = planned_memory(history)
    remark = f"planned {size(planned[max(planned)])}" if planned else ""
    return "Peak memory", size(peak), "largest rank", remark


def _attempts_card(history: History) -> Card:
    if not history.attempts:
        return None
    total = len(history.attempts)
    kept = f"{counted(len(history.generations), 'generation')} kept"
    return "Attempts", str(total), "launch" if total == 1 else "launches", kept


def _proof_card(history: History) -> Card:
    if history.proof is None:
        return None
    cases = history.proof.cases
    good = sum(case.ok for case in cases)
    return "Proof", f"{good}/{len(cases)}", "as promised", f"over {counted(history.proof.steps, 'step')}"


def attempts_table(history: History) -> str:
    """All attempts, the newest first."""
    rows = [_attempt_cells(history, attempt) for attempt in reversed(history.attempts)]
    heads = ["", "Began (UTC)", "From", "To", "Took", "Ended", "Ranks", "ZeRO", "Machine", "torch", "Note"]
    return table("Attempts", heads, rows, right=(2, 3, 4, 6, 7))


def _attempt_cells(history: History, attempt: Attempt) -> list[str]:
    start, end = attempt.start, attempt.end
    tones = {"completed": "good", "failed": "bad", "killed or running": "warn"}
    reason = attempt.reason
    if end is None and attempt is history.attempts[-1] and history.is_running:
        reason, tones = "running", {"running": "busy"}
    elif end is None and (attempt is not history.attempts[-1] or history.is_running is False):
        reason, tones = "killed", {"killed": "warn"}
    notes = [end.message if end else "", f"continued as {start.accepted}" if start.accepted else ""]
    cores = start.machine.get("cores")
    swatch = f'<span class="swatch" data-colour="{attempt_colour(attempt.attempt)[1:]}"></span>'
    return [
        f"{swatch}{attempt.attempt}",
        moment(start.time_s),
        count(start.from_step),
        count(last_step(history, attempt)),
        duration(end.time_s - start.time_s) if end and end.time_s >= start.time_s else "–",
        badge(reason, tones.get(reason, "calm")),
        _cell(start.execution.get("ranks")),
        _cell(start.execution.get("sharding")),
        escape(_machine(start.machine.get("name", ""), cores)),
        escape(start.versions.get("torch", "–")),
        escape("; ".join(note for note in notes if note)),
    ]


def _machine(name: Any, cores: Any) -> str:
    """A named machine and its cores; the one that a run was started on has no name of its own."""
    named = [] if name in ("", THIS) else [str(name)]
    return ", ".join([*named, *([counted(cores, "core")] if isinstance(cores, int) else [])]) or "–"


def _cell(value: Any) -> str:
    return "–" if value is None else escape(str(value))


def generations_table(history: History) -> str:
    """Committed generations, the newest first, and below them what is none."""
    recorded = {row.step: row.update_digest for row in history.rows if row.update_digest}
    sizes = {
        str(event.data.get("name")): event.data.get("bytes")
        for event in history.events
        if event.kind == "generation"
    }
    rows = [_generation_cells(g, recorded, sizes) for g in reversed(history.generations)]
    for broken in history.incomplete:
        rows.append(["–", f"<code>{escape(broken.path.name)}</code>", "–", "–",
                     badge("incomplete", "warn"), escape(broken.reason)])  # fmt: skip
    heads = ["Step", "State", "Committed (UTC)", "Size", "Status", "Recorded by the run"]
    return table("Generations", heads, rows, right=(0, 3))


def _generation_cells(generation: Generation, recorded: dict[int, str], sizes: dict[str, Any]) -> list[str]:
    digest = recorded.get(generation.step)
    match digest:
        case None:
            agrees = "no digest at this step"
        case generation.update_digest:
            agrees = badge("same digest", "good")
        case _:
            agrees = badge("another digest", "bad") + " " + code(digest)
    num_bytes = sizes.get(generation.name)
    return [
        count(generation.step), code(generation.update_digest), moment(generation.time_s),
        size(num_bytes) if isinstance(num_bytes, int) else "–", badge("committed", "good"), agrees,
    ]  # fmt: skip


def proof_table(history: History) -> str:
    """The cases of the proof, in the order in which they were run."""
    assert history.proof is not None
    rows = []
    for case in history.proof.cases:
        last = max(case.digests, default=None)
        rows.append([
            badge("holds", "good") if case.ok else badge("fails", "bad"), escape(case.name), escape(case.expected),
            escape(case.relation), code(case.digests[last]) if last is not None else "–", count(case.tokens),
            count(case.skipped), count(case.repeated), duration(case.seconds),
        ])  # fmt: skip
    heads = ["", "Execution", "Promised", "Found", "State at the end", "Tokens", "Skipped", "Twice", "Took"]
    return table("Proof", heads, rows, right=(5, 6, 7, 8), wrapped=(1,))


def events_table(history: History) -> str:
    """What happened, in order; of very many the loud ones and the newest."""
    shown = [event for event in history.events if event.kind != "sample_text"]
    if len(shown) > _MOST_EVENTS:
        loud = [event for event in shown if event.kind in _LOUD][-_MOST_EVENTS // 2 :]
        chosen = {id(event) for event in [*loud, *shown[-_MOST_EVENTS // 2 :]]}
        shown = [event for event in shown if id(event) in chosen]
    rows = [
        [
            moment(event.time_s), count(event.attempt), "–" if event.step is None else count(event.step),
            badge(event.kind.replace("_", " "), _tone(event)), escape(_facts(event)),
        ]
        for event in shown
    ]  # fmt: skip
    return table("Events", ["When (UTC)", "Attempt", "Step", "What", "Facts"], rows, right=(1, 2))


def num_loud(history: History) -> int:
    """How many events ask for attention."""
    return sum(event.kind in _LOUD for event in history.events)


def _tone(event: Event) -> str:
    match event.kind:
        case "fault":
            return "bad"
        case "retry" | "skipped_step" | "torn_line":
            return "warn"
        case "generation":
            return "good"
        case _:
            return "calm"


def _facts(event: Event) -> str:
    parts = []
    for name, value in event.data.items():
        match name, value:
            case "bytes", int():
                text = size(value)
            case _, str() if is_digest(value):
                text = value[:12]
            case _, list():
                text = ", ".join(map(str, value))
            case _:
                text = str(value)
        parts.append(f"{name.replace('_', ' ')} {text[:240]}{'…' if len(text) > 240 else ''}")
    return " · ".join(parts)


def samples(history: History, most: int = 4) -> list[tuple[int, list[str]]]:
    """(step, texts) of the newest `sample_text` event: the first texts that the step read."""
    for event in reversed(history.events):
        texts = event.data.get("texts") if event.kind == "sample_text" else None
        if isinstance(texts, list) and texts:
            step = event.data.get("for_step", event.step)
            return [(step if isinstance(step, int) else 0, [str(text) for text in texts[:most]])]
    return []
