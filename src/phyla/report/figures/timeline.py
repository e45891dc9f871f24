"""What every worker did when."""

from collections import Counter

from phyla.records import Attempt, AttemptState, said_by
from phyla.report import style
from phyla.report.data import StudyData, time_spent
from phyla.report.words import moment, plain
from phyla.words import counted, duration

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


def timeline_figure(data: StudyData) -> style.Figure:
    """Return a row per worker with a bar for each attempt, coloured by its outcome."""
    title = "What every worker did"
    if not data.attempts:
        return style.empty(title, "No trial has been claimed yet.")
    ran = sorted(zip(data.attempts, data.running, strict=True), key=lambda pair: pair[1])
    counts = Counter(attempt.worker for attempt, _ in ran)
    most = {worker for worker, _ in counts.most_common(WORKERS)}
    # Host and process, if these are unique.
    labels = {worker: ":".join(worker.split(":")[:2]) for worker in counts if worker in most}
    unique = len(set(labels.values())) == len(labels)
    labels = {worker: plain(label if unique else worker, 40) for worker, label in labels.items()}
    chosen = [(attempt, end - begin) for attempt, (begin, end) in ran if attempt.worker in most]
    notes: list[str] = []
    if len(labels) < len(counts):
        notes.append(f"The {WORKERS} workers with most attempts of {len(counts):,} are shown.")
    if len(chosen) > BARS:
        notes.append(f"The newest {BARS:,} of {counted(len(chosen), 'attempt')} are shown.")
    few = len(labels) <= 30
    subtitle = f"{counted(len(ran), 'attempt')} by {counted(len(labels), 'worker')}; time in UTC"
    figure = style.figure(title, subtitle, height=190 + len(labels) * (26 if few else 15), notes=notes)
    for state, colour in COLORS.items():
        bars = [(attempt, seconds) for attempt, seconds in chosen[-BARS:] if attempt.state is state]
        if bars:
            figure.add_bar(
                orientation="h",
                y=[labels[attempt.worker] for attempt, _ in bars],
                base=[moment(attempt.claimed_at) for attempt, _ in bars],
                x=[1000 * max(0.0, seconds) for _, seconds in bars],
                text=[_words(attempt, seconds) for attempt, seconds in bars],
                marker={"color": colour, "line": {"width": 0.5 if len(chosen) < 500 else 0, "color": style.GRID}},
                name=state.value,
            )
    figure.update_layout(barmode="overlay", bargap=0.25, showlegend=True, xaxis_type="date")
    figure.update_yaxes(
        type="category",
        categoryorder="array",
        categoryarray=list(reversed(labels.values())),
        range=[-0.6, len(labels) - 0.4],
        showgrid=False,
        dtick=1,
        tickfont_size=11 if few else 9,
    )
    return figure


def _words(attempt: Attempt, seconds: float) -> str:
    lines = [
        f"<b>trial {attempt.job}</b>, attempt {attempt.token}: {attempt.state.value}",
        f"{moment(attempt.claimed_at):%Y-%m-%d %H:%M:%S}, {duration(max(0.0, seconds))}",
        plain(attempt.worker, 90),
    ]
    lines += [time_spent([attempt]).words()] if attempt.timings else []
    lines += [plain(said_by(attempt.error), 90)] if attempt.error else []
    return "<br>".join(lines)
