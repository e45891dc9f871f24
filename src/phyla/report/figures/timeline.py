"""What every worker did when."""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from phyla.records import Attempt, AttemptState
from phyla.report import style
from phyla.report.data import StudyData
from phyla.report.times import time_spent
from phyla.report.words import counted, duration, last_line, moment, plain, short

if TYPE_CHECKING:
    import plotly.graph_objects as go

BARS = 5_000
"""Bars that are drawn; beyond, neighbours of the same outcome are merged."""
WORKERS = 80
"""Workers that get a row; beyond, those with the most attempts."""

COLORS = {
    AttemptState.COMPLETED: "#56A5DB",
    AttemptState.RUNNING: "#E69F00",
    AttemptState.FAILED: "#D55E00",
    AttemptState.LOST: "#CC79A7",
    AttemptState.RELEASED: "#9AA1AB",
    AttemptState.CANCELLED: "#6B7280",
}
"""One colour per outcome."""


class Bar(NamedTuple):
    """One attempt, or several neighbours of the same worker and outcome; times in seconds since the epoch."""

    worker: str
    state: AttemptState
    start: float
    end: float
    attempts: Sequence[Attempt]


def timeline_figure(data: StudyData) -> "go.Figure":
    """Return a row per worker with a bar for each attempt, coloured by its outcome."""
    title = "What every worker did"
    if not data.attempts:
        return style.empty(title, "No trial has been claimed yet.")
    attempts = sorted(data.attempts, key=lambda attempt: attempt.claimed_at)
    counts = Counter(attempt.worker for attempt in attempts)
    most = {worker for worker, _ in counts.most_common(WORKERS)}
    workers = [worker for worker in counts if worker in most]
    notes: list[str] = []
    if len(workers) < len(counts):
        notes.append(f"The {WORKERS} workers with most attempts of {len(counts):,} are shown.")
    now = data.last_moment
    ends = [now if one.ended_at is None else max(one.ended_at, one.claimed_at) for one in attempts]
    bars = [
        Bar(one.worker, one.state, one.claimed_at, end, [one])
        for one, end in zip(attempts, ends, strict=True)
        if one.worker in most
    ]
    span = max(bar.end for bar in bars) - bars[0].start
    share = f", busy {_busy(bars) / (span * len(workers)):.0%} of the time" if span > 0 else ""
    merged, gap = bars, 0.0
    while len(merged) > BARS and gap < span:
        merged, gap = _merged(merged, gap), max(2 * gap, span / 4000)
    if len(merged) > BARS:
        merged = [merged[index] for index in style.kept(len(merged), BARS)]
    if len(merged) < len(bars):
        notes.append(
            f"{len(bars):,} attempts are drawn as {len(merged):,} bars: neighbours of the same outcome are merged."
        )
    subtitle = f"{counted(len(attempts), 'attempt')} by {counted(len(workers), 'worker')}{share}; time in UTC"
    row_height = 26 if len(workers) <= 30 else 15
    figure = style.figure(title, subtitle, height=190 + len(workers) * row_height, notes=notes)
    labels = _labels(workers)
    for state, colour in COLORS.items():
        chosen = [bar for bar in merged if bar.state is state]
        if chosen:
            figure.add_bar(
                orientation="h",
                y=[labels[bar.worker] for bar in chosen],
                base=[moment(bar.start) for bar in chosen],
                x=[1000 * (bar.end - bar.start) for bar in chosen],
                text=[_words(bar) for bar in chosen],
                marker={"color": colour, "line": {"width": 0.5 if len(merged) < 500 else 0, "color": style.GRID}},
                name=state.value,
            )
    figure.update_layout(
        barmode="overlay",
        bargap=0.25,
        showlegend=True,
        xaxis={"type": "date"},
        yaxis={
            "type": "category",
            "categoryorder": "array",
            "categoryarray": list(reversed(labels.values())),
            "range": [-0.6, len(workers) - 0.4],
            "showgrid": False,
            "tickfont": {"size": 11 if len(workers) <= 30 else 9},
            "dtick": 1,
        },
    )
    return figure


def _labels(workers: Sequence[str]) -> dict[str, str]:
    """Return a label for each worker: host and process, if these are unique."""
    labels = {worker: ":".join(worker.split(":")[:2]) for worker in workers}
    unique = len(set(labels.values())) == len(labels)
    return {worker: plain(short(label if unique else worker, 40)) for worker, label in labels.items()}


def _busy(bars: Sequence[Bar]) -> float:
    """Return the seconds in which workers did something; what overlaps on one worker counts once."""
    until: dict[str, float] = {}
    busy = 0.0
    for bar in bars:
        before = until.get(bar.worker, bar.start)
        busy += max(0.0, bar.end - max(bar.start, before))
        until[bar.worker] = max(bar.end, before)
    return busy


def _merged(bars: Sequence[Bar], gap: float) -> list[Bar]:
    """Merge neighbours of one worker and outcome that are at most `gap` seconds apart."""
    last: dict[str, int] = {}
    merged: list[Bar] = []
    for bar in bars:
        place = last.get(bar.worker)
        before = None if place is None else merged[place]
        if place is not None and before and before.state is bar.state and bar.start - before.end <= gap:
            attempts = [*before.attempts, *bar.attempts]
            merged[place] = before._replace(end=max(before.end, bar.end), attempts=attempts)
        else:
            last[bar.worker] = len(merged)
            merged.append(bar)
    return merged


def _words(bar: Bar) -> str:
    attempt = bar.attempts[0]
    worker, spent = plain(short(bar.worker)), duration(bar.end - bar.start)
    if len(bar.attempts) > 1:
        return f"{len(bar.attempts):,} attempts: {bar.state.value}<br>{spent}<br>{worker}"
    lines = [
        f"<b>trial {attempt.trial}</b>, attempt {attempt.token}: {bar.state.value}",
        f"{moment(bar.start):%Y-%m-%d %H:%M:%S}, {spent}",
        worker,
    ]
    if attempt.timings:
        lines.append(time_spent([attempt]).words())
    if attempt.error:
        lines.append(plain(short(last_line(attempt.error))))
    return "<br>".join(lines)
