"""What every worker did when."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, final

from phyla.records import Attempt, AttemptState
from phyla.report import style
from phyla.report.data import StudyData
from phyla.report.times import time_spent
from phyla.report.words import counted, duration, last_line, moment, plain, short

if TYPE_CHECKING:
    import plotly.graph_objects as go

BARS = 5_000
"""Bars that are drawn; beyond, neighbours of the same outcome are merged."""
ROWS = 80
"""Workers that get a row; beyond, those that worked most."""

COLORS = {
    AttemptState.COMPLETED: "#56A5DB",
    AttemptState.RUNNING: "#E69F00",
    AttemptState.FAILED: "#D55E00",
    AttemptState.LOST: "#CC79A7",
    AttemptState.RELEASED: "#9AA1AB",
    AttemptState.CANCELLED: "#6B7280",
}
"""One colour per outcome."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """Something a worker did: one attempt, or several neighbours of the same outcome.

    Attributes:
        worker: whose row it is in.
        state: outcome.
        start: seconds since the epoch.
        end: seconds since the epoch.
        attempts: how many.
        words: what appears under the pointer.
    """

    worker: str
    state: AttemptState
    start: float
    end: float
    attempts: int
    words: str


def timeline_figure(data: StudyData) -> "go.Figure":
    """Return a row per worker with a bar for each attempt, coloured by its outcome."""
    title = "What every worker did"
    if not data.attempts:
        return style.empty(title, "No trial has been claimed yet.")
    import plotly.graph_objects as go

    notes: list[str] = []
    workers = _workers(data, notes)
    bars = _bars(data, workers, notes)
    span = max(bar.end for bar in bars) - min(bar.start for bar in bars)
    share = f", busy {_busy(bars) / (span * len(workers)):.0%} of the time" if span > 0 else ""
    figure = style.figure(
        title,
        f"{counted(len(data.attempts), 'attempt')} by {counted(len(workers), 'worker')}{share}; time in UTC",
        height=190 + 18 * len(notes) + len(workers) * (26 if len(workers) <= 30 else 15),
        notes=notes,
    )
    for state, color in COLORS.items():
        chosen = [bar for bar in bars if bar.state is state]
        if chosen:
            figure.add_trace(
                go.Bar(
                    orientation="h",
                    y=[workers[bar.worker] for bar in chosen],
                    base=[moment(bar.start) for bar in chosen],
                    x=[1000 * (bar.end - bar.start) for bar in chosen],
                    text=[bar.words for bar in chosen],
                    textposition="none",
                    hovertemplate="%{text}<extra></extra>",
                    marker={"color": color, "line": {"width": 0.5 if len(bars) < 500 else 0, "color": style.GRID}},
                    name=state.value,
                )
            )
    figure.update_layout(
        barmode="overlay",
        bargap=0.25,
        showlegend=True,
        xaxis=style.axis(type="date"),
        yaxis=style.axis(
            type="category",
            categoryorder="array",
            categoryarray=list(reversed(workers.values())),
            range=[-0.6, len(workers) - 0.4],
            showgrid=False,
            tickfont={"size": 11 if len(workers) <= 30 else 9},
            dtick=1,
        ),
    )
    return figure


def _workers(data: StudyData, notes: list[str]) -> dict[str, str]:
    """Return the labels of the workers that get a row, by first claim."""
    counts: dict[str, int] = {}
    for attempt in sorted(data.attempts, key=lambda attempt: attempt.claimed_at):
        counts[attempt.worker] = counts.get(attempt.worker, 0) + 1
    if len(counts) > ROWS:
        most = set(sorted(counts, key=lambda worker: -counts[worker])[:ROWS])
        notes.append(f"The {ROWS} workers with most attempts of {len(counts):,} are shown.")
        counts = {worker: count for worker, count in counts.items() if worker in most}
    labels = {worker: ":".join(worker.split(":")[:2]) for worker in counts}
    unique = len(set(labels.values())) == len(labels)
    return {worker: plain(short(labels[worker] if unique else worker, 40)) for worker in counts}


def _bars(data: StudyData, workers: dict[str, str], notes: list[str]) -> list[Bar]:
    attempts = sorted((a for a in data.attempts if a.worker in workers), key=lambda attempt: attempt.claimed_at)
    now = data.last_moment
    bars = [_bar(attempt, now) for attempt in attempts]
    if len(bars) <= BARS:
        return bars
    span = max(bar.end for bar in bars) - bars[0].start
    merged, gap = _merged(bars, 0.0), span / 4000
    while len(merged) > BARS and gap < span:
        merged, gap = _merged(bars, gap), gap * 2
    note = f"{len(bars):,} attempts are drawn as {len(merged):,} bars: neighbours of the same outcome are merged."
    if len(merged) > BARS:
        merged = [merged[index] for index in style.kept(len(merged), BARS)]
        note = f"{len(merged):,} bars are drawn, an even choice of {len(bars):,} attempts."
    notes.append(note)
    return merged


def _busy(bars: list[Bar]) -> float:
    """Return the seconds in which a worker did something, over all workers; what overlaps counts once."""
    until: dict[str, float] = {}
    busy = 0.0
    for bar in bars:
        start = max(bar.start, until.get(bar.worker, bar.start))
        busy += max(0.0, bar.end - start)
        until[bar.worker] = max(bar.end, until.get(bar.worker, bar.end))
    return busy


def _bar(attempt: Attempt, now: float) -> Bar:
    end = now if attempt.ended_at is None else attempt.ended_at
    lines = [
        f"<b>trial {attempt.trial}</b>, attempt {attempt.token}: {attempt.state.value}",
        f"{moment(attempt.claimed_at):%Y-%m-%d %H:%M:%S}, {duration(end - attempt.claimed_at)}",
        plain(short(attempt.worker)),
    ]
    if attempt.timings:
        lines.append(time_spent([attempt]).words())
    if attempt.error:
        lines.append(plain(short(last_line(attempt.error))))
    return Bar(
        worker=attempt.worker,
        state=attempt.state,
        start=attempt.claimed_at,
        end=max(end, attempt.claimed_at),
        attempts=1,
        words="<br>".join(lines),
    )


def _merged(bars: list[Bar], gap: float) -> list[Bar]:
    """Return the bars with neighbours of one worker and outcome merged if they are at most `gap` seconds apart."""
    last: dict[str, Bar] = {}
    done: list[Bar] = []
    for bar in bars:
        before = last.get(bar.worker)
        if before is not None and before.state is bar.state and bar.start - before.end <= gap:
            count = before.attempts + bar.attempts
            end = max(before.end, bar.end)
            last[bar.worker] = replace(
                before,
                end=end,
                attempts=count,
                words=f"{count:,} attempts: {bar.state.value}<br>{duration(end - before.start)}<br>"
                f"{plain(short(bar.worker))}",
            )
        else:
            if before is not None:
                done.append(before)
            last[bar.worker] = bar
    return sorted([*done, *last.values()], key=lambda bar: bar.start)
