"""What every worker did when."""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from phyla.records import Attempt, AttemptState
from phyla.report import style
from phyla.report.data import StudyData
from phyla.report.times import time_spent
from phyla.report.words import counted, duration, last_line, moment, plain, short

if TYPE_CHECKING:
    import plotly.graph_objects as go

BARS = 5_000
"""Attempts that are drawn; beyond, the newest ones."""
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


def timeline_figure(data: StudyData) -> "go.Figure":
    """Return a row per worker with a bar for each attempt, coloured by its outcome."""
    title = "What every worker did"
    if not data.attempts:
        return style.empty(title, "No trial has been claimed yet.")
    attempts = sorted(data.attempts, key=lambda attempt: attempt.claimed_at)
    counts = Counter(attempt.worker for attempt in attempts)
    most = {worker for worker, _ in counts.most_common(WORKERS)}
    workers = [worker for worker in counts if worker in most]
    chosen = [attempt for attempt in attempts if attempt.worker in most]
    notes: list[str] = []
    if len(workers) < len(counts):
        notes.append(f"The {WORKERS} workers with most attempts of {len(counts):,} are shown.")
    if len(chosen) > BARS:
        notes.append(f"The newest {BARS:,} of {counted(len(chosen), 'attempt')} are shown.")
    end = data.last_moment
    subtitle = f"{counted(len(attempts), 'attempt')} by {counted(len(workers), 'worker')}; time in UTC"
    figure = style.figure(
        title, subtitle, height=190 + len(workers) * (26 if len(workers) <= 30 else 15), notes=notes
    )
    labels = _labels(workers)
    for state, colour in COLORS.items():
        bars = [attempt for attempt in chosen[-BARS:] if attempt.state is state]
        if bars:
            figure.add_bar(
                orientation="h",
                y=[labels[attempt.worker] for attempt in bars],
                base=[moment(attempt.claimed_at) for attempt in bars],
                x=[1000 * (_end(attempt, end) - attempt.claimed_at) for attempt in bars],
                text=[_words(attempt, end) for attempt in bars],
                marker={"color": colour, "line": {"width": 0.5 if len(chosen) < 500 else 0, "color": style.GRID}},
                name=state.value,
            )
    order = {"categoryorder": "array", "categoryarray": list(reversed(labels.values()))}
    figure.update_layout(barmode="overlay", bargap=0.25, showlegend=True, xaxis_type="date")
    figure.update_yaxes(type="category", **order, range=[-0.6, len(workers) - 0.4], showgrid=False, dtick=1)
    figure.update_yaxes(tickfont_size=11 if len(workers) <= 30 else 9)
    return figure


def _labels(workers: Sequence[str]) -> dict[str, str]:
    """Return a label for each worker: host and process, if these are unique."""
    labels = {worker: ":".join(worker.split(":")[:2]) for worker in workers}
    unique = len(set(labels.values())) == len(labels)
    return {worker: plain(short(label if unique else worker, 40)) for worker, label in labels.items()}


def _end(attempt: Attempt, now: float) -> float:
    return max(attempt.claimed_at, now if attempt.ended_at is None else attempt.ended_at)


def _words(attempt: Attempt, now: float) -> str:
    lines = [
        f"<b>trial {attempt.job}</b>, attempt {attempt.token}: {attempt.state.value}",
        f"{moment(attempt.claimed_at):%Y-%m-%d %H:%M:%S}, {duration(_end(attempt, now) - attempt.claimed_at)}",
        plain(short(attempt.worker)),
    ]
    if attempt.timings:
        lines.append(time_spent([attempt]).words())
    if attempt.error:
        lines.append(plain(short(last_line(attempt.error))))
    return "<br>".join(lines)
