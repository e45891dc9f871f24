"""Fitness of every member over the steps that it trained."""

import math
from typing import TYPE_CHECKING, Any

from phyla.records import JobState, TrialRecord
from phyla.report import style
from phyla.report.data import StudyData, finite_fitness
from phyla.report.words import counted, hover, plain, score

if TYPE_CHECKING:
    import plotly.graph_objects as go

POINTS = 8_000
"""Points of all members' lines together; beyond, lines keep only their outline."""
ARROWS = 300
"""Jumps that are drawn; beyond, an even selection, and all on the winner's path."""
EDGE = 1_000
"""Marks of one kind at the edge; beyond, an even selection."""


def fitness_figure(data: StudyData) -> "go.Figure":
    """Return the fitness of every member over the steps it has spent.

    On top of a muted line per member are the best so far, an arrow from donor to child for every jump, and the
    path that the winner's weights took. Trials that failed, are infeasible, or have no finite fitness lie along
    the edge where bad values are.
    """
    better = "higher" if data.aim.maximize else "lower"
    title = f"Fitness of every member: {data.aim.name}, {better} is better"
    if not data.completed:
        return style.empty(title, "No trial has completed yet.")
    notes: list[str] = []
    traces = _member_lines(data, notes)
    if data.scored:
        traces.append(_best_so_far(data))
    traces += _jumps(data, notes)
    if data.best is not None:
        path = [_row(data, trial) for trial in data.winner_path]
        sizes = [*[5 if len(path) <= 60 else 0] * (len(path) - 1), 10]
        look = {"line": {"color": style.WINNER, "width": 2.4}, "marker": {"color": style.WINNER, "size": sizes}}
        traces.append(style.trace(path, mode="lines+markers", name="the winner's path", **look))
    values = [trial.fitness or 0.0 for trial in data.scored]
    limits = style.sensible_range(values, maximize=data.aim.maximize)
    inside = [value for value in values if limits is None or limits[0] <= value <= limits[1]]
    # On a linear axis a loss that falls by orders of magnitude is a flat line after the first trials.
    log = style.is_wide(inside)
    if log:
        limits = None
    elif len(inside) < len(values):
        outside = counted(len(values) - len(inside), "point")
        notes.append(f"Outside of the range shown: {outside}; double-click to see all.")
    subtitle = "A line is a member; an arrow leads from a donor to the member that took it over"
    figure = style.figure(title, subtitle, height=560, notes=notes)
    figure.add_traces([*traces, *_mishaps(data)])
    figure.update_xaxes(title_text="steps spent by the member", rangemode="tozero", tickformat="~s")
    figure.update_yaxes(title_text=plain(data.aim.name), type="log" if log else None, range=limits)
    figure.update_layout(yaxis2={"overlaying": "y", "range": [0, 1], "visible": False, "fixedrange": True})
    if data.best is not None:
        _add_label(figure, data, data.best, log=log)
    return figure


def _row(data: StudyData, trial: TrialRecord) -> tuple[int, float | None, str]:
    start, end = data.spent[trial.id]
    return start if end is None else end, finite_fitness(trial), hover(trial, data.aim.name)


def _member_lines(data: StudyData, notes: list[str]) -> list[dict[str, Any]]:
    """Return one line per member, with gaps where there is no finite fitness."""
    path = {trial.id for trial in data.winner_path}
    limit = max(20, POINTS // max(1, len(data.by_member)))
    mode = "lines" if len(data.by_member) > 20 else "lines+markers"
    lines: list[dict[str, Any]] = []
    shown = 0
    for member, trials in data.by_member.items():
        done = [trial for trial in trials if trial.state is JobState.COMPLETED]
        on_path = [index for index, trial in enumerate(done) if trial.id in path]
        picked = style.outline([finite_fitness(trial) for trial in done], limit, on_path)
        shown += len(picked)
        look = {"line": {"color": style.MUTED, "width": 1}, "marker": {"color": style.MUTED, "size": 4}}
        legend = {"name": "members", "legendgroup": "members", "showlegend": not lines, "meta": {"member": member}}
        if done:
            lines.append(style.trace([_row(data, done[index]) for index in picked], mode=mode, **look, **legend))
    if shown < len(data.completed):
        notes.append(f"The members' lines show {shown:,} of {len(data.completed):,} trials: their outline.")
    return lines


def _jumps(data: StudyData, notes: list[str]) -> list[dict[str, Any]]:
    """Return an arrow from donor to child for every jump where both have a finite fitness."""
    pairs = [(data.lineage.parent(child), data.lineage.trial(child)) for _, child in data.lineage.jumps]
    jumps = [
        (donor, child)
        for donor, child in pairs
        if donor is not None and finite_fitness(donor) is not None and finite_fitness(child) is not None
    ]
    path, even = {trial.id for trial in data.winner_path}, set(style.kept(len(jumps), ARROWS))
    chosen = [jump for index, jump in enumerate(jumps) if index in even or jump[1].id in path]
    if not chosen:
        return []
    what = counted(len(jumps), "jump")
    if len(chosen) < len(jumps):
        notes.append(f"{len(chosen):,} of {what} are drawn: an even selection, and all on the winner's path.")
    marker = {
        "color": style.JUMP,
        "symbol": ["circle", "arrow", "circle"] * len(chosen),
        "size": [3, 9, 0] * len(chosen),
        "angleref": "previous",
    }
    look = {"opacity": 0.85 if len(chosen) <= 60 else 0.45, "hoverinfo": "skip", "marker": marker}
    line = {"color": style.JUMP, "width": 1.2, "dash": "3px,3px"}
    rows = style.pieces([_row(data, donor)[:2], _row(data, child)[:2]] for donor, child in chosen)
    return [style.trace(rows, mode="lines+markers", line=line, name=what, **look)]


def _best_so_far(data: StudyData) -> dict[str, Any]:
    sign = 1 if data.aim.maximize else -1
    points = sorted((_row(data, t)[0], -sign * (t.fitness or 0.0), t.id) for t in data.scored)
    rows: list[tuple[int, float, str]] = []
    for x, worse, trial in points:
        if not rows or -sign * rows[-1][1] > worse:
            rows.append((x, -sign * worse, f"best so far: {score(-sign * worse)}, trial {trial}"))
    rows.append((points[-1][0], *rows[-1][1:]))
    return style.trace(
        rows, mode="lines", line={"color": style.BEST, "width": 1.8, "shape": "hv"}, name="best so far"
    )


def _add_label(figure: "go.Figure", data: StudyData, best: TrialRecord, *, log: bool) -> None:
    x, y, _ = _row(data, best)
    late = x > 0.6 * max(end or 0 for _, end in data.spent.values())
    figure.add_annotation(
        x=x,
        y=math.log10(y) if log and y else y,
        text=f"<b>{plain(score(best.fitness))}</b>  trial {best.id}, member {best.member}",
        showarrow=False,
        xanchor="right" if late else "left",
        yshift=16 if data.aim.maximize else -16,
        font={"color": style.WINNER, "size": 13},
        name="winner",
    )


def _mishaps(data: StudyData) -> list[dict[str, Any]]:
    """Return marks at the edge of bad values, where trials failed and where a fitness is not a finite number."""
    broken = [trial for trial in data.lineage if trial.state is JobState.FAILED]
    cancelled = [trial for trial in data.lineage if trial.state is JobState.CANCELLED]
    unfit = [trial for trial in data.completed if finite_fitness(trial) is None]
    infeasible = [trial for trial in unfit if trial.criteria is not None and trial.criteria.infeasible]
    odd = [trial for trial in unfit if trial.criteria is None or not trial.criteria.infeasible]
    traces = []
    for name, trials, symbol in (
        (f"{len(infeasible):,} infeasible", infeasible, "x-thin-open"),
        (f"{len(odd):,} nan or infinite", odd, "triangle-up"),
        (counted(len(broken), "failed trial"), broken, "x"),
        (f"{len(cancelled):,} cancelled", cancelled, "x-open"),
    ):
        found = [_row(data, trials[index]) for index in style.kept(len(trials), EDGE)]
        rows = [(x, 0.012 if data.aim.maximize else 0.988, words) for x, _, words in found]
        look = {
            "marker": {"symbol": symbol, "color": style.FAILED, "size": 8, "opacity": 0.9},
            "cliponaxis": False,
        }
        traces += [style.trace(rows, yaxis="y2", mode="markers", name=name, **look)] if rows else []
    return traces
