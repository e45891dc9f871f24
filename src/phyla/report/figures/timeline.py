"""Where did the time go? The work of each worker over time."""

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
"""Intervals of time."""
ROWS = 40
"""Rows; of more workers, those that worked longest are drawn."""
LOST = "lost"
WORK = (*PHASES, LOST)
"""The kinds of work that fill a worker's time."""
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
"""The order in which the phases of an attempt are drawn; only their durations are recorded."""


@final
class Spans(NamedTuple):
    """Intervals of work as arrays: begin and end, index of the worker, and index of the work in `WORK`."""

    begin: Any
    end: Any
    worker: Any
    work: Any


def timeline_figure(data: StudyData) -> style.Figure:
    """Return the number of workers by work over time, and below, the most frequent work of each worker."""
    title = "Where did the time go?"
    spans, workers = _spans(data)
    if not len(spans.begin):
        return style.empty(title, "No worker has started yet.")
    start = float(spans.begin.min())
    spans = spans._replace(begin=spans.begin - start, end=spans.end - start)
    edges = np.linspace(0, spans.end.max(), PLACES + 1)
    unit, size = time_unit(edges[-1])
    middles = (edges[1:] + edges[:-1]) / 2 / size
    seconds = {work: _seconds(spans, spans.work == at, edges) for at, work in enumerate(WORK)}
    total = sum(float(work_seconds.sum()) for work_seconds in seconds.values())
    shares = sorted(
        (
            (float(work_seconds.sum()) / total, work)
            for work, work_seconds in seconds.items()
            if work_seconds.any()
        ),
        reverse=True,
    )
    answer = ", ".join(f"{work} {share:.0%}" if share >= 0.005 else f"{work} < 1%" for share, work in shares)
    timed = int(data.attempts.timed.sum())
    notes = ["Lost: failed attempts. Blank: no record. The order of phases in an attempt is not recorded."]
    if timed < len(data.attempts):
        count = format_count(len(data.attempts), "attempt")
        notes.append(f"Phases are known of {timed:,} of {count}; other time counts as training, or as lost.")
    busy = np.bincount(spans.worker, spans.end - spans.begin, len(workers))
    longest = np.sort(np.argsort(-busy, kind="stable")[:ROWS])
    if len(longest) < len(workers):
        notes.append(f"Rows: the {ROWS} of {len(workers):,} workers that worked longest.")
    figure = style.figure(
        title,
        f"{answer}; {duration(total)} of {format_count(len(workers), 'worker')}",
        height=380 + 16 * max(4, len(longest)),
        notes=notes,
        rows=2,
        shared_xaxes=True,
        row_heights=[180, 40 + 16 * max(4, len(longest))],
        vertical_spacing=0.06,
    )
    # The order of phases is a guess, so phases of a worker may overlap; it does only one thing at a time.
    at_once = np.maximum(edges[1] - edges[0], sum(seconds.values()) / len(workers))
    for work, work_seconds in seconds.items():
        if work_seconds.any():
            rows = zip(middles, work_seconds / at_once, strict=True)
            look: dict[str, Any] = {"stackgroup": "workers", "line_shape": "hvh", "hoverinfo": None}
            drawn = style.line(rows, str(work), COLOURS[work], 0, fillcolor=COLOURS[work], **look)
            figure.add_traces(drawn, rows=1, cols=1)
    figure.add_trace(_rows(spans, longest.tolist(), edges, middles), row=2, col=1)
    figure.update_layout(showlegend=True, legend={"traceorder": "normal"})
    figure.update_xaxes(title_text=f"time since {moment(start):%Y-%m-%d %H:%M} UTC ({unit})", row=2, col=1)
    figure.update_yaxes(title_text="workers", rangemode="tozero", hoverformat=".1f", row=1, col=1)
    figure.update_yaxes(style.categories([workers[at] or "not known" for at in longest]), row=2, col=1)
    return figure


def _spans(data: StudyData) -> tuple[Spans, list[str]]:
    """Return all work as spans, and the names of workers."""
    attempts, tasks = data.attempts, data.evaluating
    places = {name: at for at, name in enumerate(attempts.workers)}
    whose = np.array([places.setdefault(name, len(places)) for name in tasks.workers], dtype=np.int32)
    evaluating = np.full(len(tasks), WORK.index(Phase.EVALUATING), dtype=np.int8)
    parts = [Spans(tasks.begin, tasks.end, whose[tasks.worker], evaluating)]
    end = data.ends
    for phase in reversed(WITHIN):
        if phase is Phase.EVALUATING and len(tasks):
            continue  # the attempts at eval tasks have more exact times
        seconds = np.nan_to_num(attempts.seconds[:, PHASES.index(phase)]).clip(0)
        if phase is Phase.TRAINING:
            seconds = np.where(attempts.timed, seconds, data.ends - attempts.begin).clip(0)
        some = seconds > 0
        work = np.where(attempts.lost[some], WORK.index(LOST), WORK.index(phase)).astype(np.int8)
        parts.append(Spans((end - seconds)[some], end[some], attempts.worker[some], work))
        end = end - seconds
    return Spans(*(np.concatenate(column) for column in zip(*parts, strict=True))), [*places]


def _seconds(spans: Spans, which: Any, edges: Any) -> Any:
    """Return the seconds of some spans between each two edges."""

    def before(moments: Any) -> Any:
        ordered = np.sort(moments)
        count = np.searchsorted(ordered, edges)
        return count * edges - np.concatenate([[0.0], np.cumsum(ordered)])[count]

    return np.diff(before(spans.begin[which]) - before(spans.end[which])).clip(0)


def _rows(spans: Spans, rows: Sequence[int], edges: Any, middles: Any) -> dict[str, Any]:
    """Return a row per worker: its most frequent work in each interval of time."""
    cells: list[list[int | None]] = []
    for worker in rows:
        own = Spans(*(column[spans.worker == worker] for column in spans))
        seconds = np.array([_seconds(own, own.work == at, edges) for at in range(len(WORK))])
        most, some = seconds.argmax(axis=0), seconds.sum(axis=0) > 0.05 * (edges[1] - edges[0])
        cells.append([int(at) if there else None for at, there in zip(most, some, strict=True)])
    count = len(WORK)
    scale = [(end / count, COLOURS[work]) for at, work in enumerate(WORK) for end in (at, at + 1)]
    words = [["" if at is None else str(WORK[at]) for at in row] for row in cells]
    look = {"text": words, "ygap": 2, "hovertemplate": "%{y}: %{text}<extra></extra>"}
    return style.heat("work of each worker", middles, cells, scale, (-0.5, count - 0.5), **look)
