"""Where did the time go? What workers did, over time."""

from collections.abc import Sequence
from typing import Any, NamedTuple, final

import numpy as np

from phyla.formatting import duration, format_count
from phyla.records import Phase
from phyla.report import style
from phyla.report.columns import PHASES
from phyla.report.data import StudyData
from phyla.report.formatting import moment, time_unit

PLACES = 200
"""Stretches of time."""
ROWS = 40
"""Workers that get a row; beyond, those that worked longest."""
LOST = "lost"
WORK = (*PHASES, LOST)
"""What a worker's time goes into, in the order of its colours."""
COLOURS = {
    Phase.TRAINING: style.BEST,
    Phase.LOADING: "#56B4E9",
    Phase.SAVING: style.JUMP,
    Phase.EVALUATING: "#E69F00",
    Phase.CONTROL: style.FAILED,
    Phase.WAITING: "#9AA1AB",
    LOST: style.WINNER,
}
WITHIN = (Phase.EVALUATING, Phase.WAITING, Phase.CONTROL, Phase.LOADING, Phase.TRAINING, Phase.SAVING)
"""The order in which the phases of an attempt are drawn: their times are known, not their order."""


@final
class Spans(NamedTuple):
    """Stretches of time, an array each: begin and end, of which worker, and the place of its work in `WORK`."""

    begin: Any
    end: Any
    worker: Any
    work: Any


def timeline_figure(data: StudyData) -> style.Figure:
    """Return how many workers did what over time, and below, what each of them did most of the time."""
    title = "Where did the time go?"
    spans, workers = _spans(data)
    if not len(spans.begin):
        return style.empty(title, "No worker has done anything yet.")
    start = float(spans.begin.min())
    spans = spans._replace(begin=spans.begin - start, end=spans.end - start)
    edges = np.linspace(0, spans.end.max(), PLACES + 1)
    unit, size = time_unit(edges[-1])
    middles = (edges[1:] + edges[:-1]) / 2 / size
    seconds = {work: _seconds(spans, spans.work == at, edges) for at, work in enumerate(WORK)}
    total = sum(float(its.sum()) for its in seconds.values())
    shares = sorted(((float(its.sum()) / total, work) for work, its in seconds.items() if its.any()), reverse=True)
    told = ", ".join(f"{work} {share:.0%}" if share >= 0.005 else f"{work} < 1%" for share, work in shares)
    timed = int(data.attempts.timed.sum())
    notes = ["Lost: attempts that failed. Blank: no record. The order of phases in an attempt is not recorded."]
    if timed < len(data.attempts):
        count = format_count(len(data.attempts), "attempt")
        notes.append(f"Phases are known of {timed:,} of {count}; the others' time counts as training, or as lost.")
    busy = np.bincount(spans.worker, spans.end - spans.begin, len(workers))
    shown = np.sort(np.argsort(-busy, kind="stable")[:ROWS])
    if len(shown) < len(workers):
        notes.append(f"Rows: the {ROWS} of {len(workers):,} workers that worked longest.")
    figure = style.figure(
        title,
        f"{told}; {duration(total)} of {format_count(len(workers), 'worker')}",
        height=380 + 16 * max(4, len(shown)),
        notes=notes,
        rows=2,
        shared_xaxes=True,
        row_heights=[180, 40 + 16 * max(4, len(shown))],
        vertical_spacing=0.06,
    )
    # Since the order of phases in an attempt is a guess, they may overlap; nobody does two things at a time.
    at_once = np.maximum(edges[1] - edges[0], sum(seconds.values()) / len(workers))
    for work, its in seconds.items():
        if its.any():
            rows = zip(middles, its / at_once, strict=True)
            look: dict[str, Any] = {"stackgroup": "workers", "line_shape": "hvh", "hoverinfo": None}
            drawn = style.line(rows, str(work), COLOURS[work], 0, fillcolor=COLOURS[work], **look)
            figure.add_traces(drawn, rows=1, cols=1)
    figure.add_trace(_rows(spans, shown.tolist(), edges, middles), row=2, col=1)
    figure.update_layout(showlegend=True, legend={"traceorder": "normal"})
    figure.update_xaxes(title_text=f"time since {moment(start):%Y-%m-%d %H:%M} UTC ({unit})", row=2, col=1)
    figure.update_yaxes(title_text="workers", rangemode="tozero", hoverformat=".1f", row=1, col=1)
    figure.update_yaxes(style.categories([workers[at] or "not known" for at in shown]), row=2, col=1)
    return figure


def _spans(data: StudyData) -> tuple[Spans, list[str]]:
    """Return what was done when, and the names of workers."""
    attempts, tasks = data.attempts, data.evaluating
    places = {name: at for at, name in enumerate(attempts.workers)}
    whose = np.array([places.setdefault(name, len(places)) for name in tasks.workers], dtype=np.int32)
    evaluating = np.full(len(tasks), WORK.index(Phase.EVALUATING), dtype=np.int8)
    parts = [Spans(tasks.begin, tasks.end, whose[tasks.worker], evaluating)]
    end = data.ends
    for phase in reversed(WITHIN):
        if phase is Phase.EVALUATING and len(tasks):
            continue  # when they ran, on any worker, is better known than from the attempts beside them
        seconds = np.nan_to_num(attempts.seconds[:, PHASES.index(phase)]).clip(0)
        if phase is Phase.TRAINING:
            seconds = np.where(attempts.timed, seconds, data.ends - attempts.begin).clip(0)
        some = seconds > 0
        work = np.where(attempts.lost[some], WORK.index(LOST), WORK.index(phase)).astype(np.int8)
        parts.append(Spans((end - seconds)[some], end[some], attempts.worker[some], work))
        end = end - seconds
    return Spans(*(np.concatenate(column) for column in zip(*parts, strict=True))), [*places]


def _seconds(spans: Spans, which: Any, edges: Any) -> Any:
    """Return the seconds of some stretches that lie between each two edges."""

    def before(moments: Any) -> Any:
        ordered = np.sort(moments)
        count = np.searchsorted(ordered, edges)
        return count * edges - np.concatenate([[0.0], np.cumsum(ordered)])[count]

    return np.diff(before(spans.begin[which]) - before(spans.end[which])).clip(0)


def _rows(spans: Spans, shown: Sequence[int], edges: Any, middles: Any) -> dict[str, Any]:
    """Return a row per worker: its most frequent work in each stretch of time."""
    cells: list[list[int | None]] = []
    for worker in shown:
        own = Spans(*(one[spans.worker == worker] for one in spans))
        found = np.array([_seconds(own, own.work == at, edges) for at in range(len(WORK))])
        most, some = found.argmax(axis=0), found.sum(axis=0) > 0.05 * (edges[1] - edges[0])
        cells.append([int(at) if there else None for at, there in zip(most, some, strict=True)])
    count = len(WORK)
    scale = [(end / count, COLOURS[work]) for at, work in enumerate(WORK) for end in (at, at + 1)]
    words = [["" if at is None else str(WORK[at]) for at in row] for row in cells]
    look = {"text": words, "ygap": 2, "hovertemplate": "%{y}: %{text}<extra></extra>"}
    return style.heat("what each worker did", middles, cells, scale, (-0.5, count - 0.5), **look)
