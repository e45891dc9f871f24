"""Fitness of every member over the steps that it trained."""

import math
from typing import TYPE_CHECKING, Any

from phyla.records import TrialRecord, TrialState
from phyla.report import style
from phyla.report.data import StudyData, finite_fitness
from phyla.report.words import counted, hover, plain, score

if TYPE_CHECKING:
    import plotly.graph_objects as go

POINTS = 8_000
"""Points of all members' lines together; beyond, lines keep only their outline."""
ARROWS = 300
"""Jumps that are drawn; beyond, an even selection, and all on the winner's path."""


def fitness_figure(data: StudyData) -> "go.Figure":
    """Return the fitness of every member over the steps it has spent.

    There is one muted line per member. On top are the best so far, an arrow from donor to child for every jump,
    and the path that the winner's weights took. Trials that failed, are infeasible, or have no finite fitness lie
    along the edge where bad values are.
    """
    title = f"Fitness of every member: {data.metric}, {data.direction}"
    if not data.completed:
        return style.empty(title, "No trial has completed yet.")
    import plotly.graph_objects as go

    notes: list[str] = []
    lines = _member_lines(data, notes)
    jumps = _jumps(data)
    arrows = _arrows(data, jumps)
    if len(arrows) < len(jumps):
        notes.append(
            f"{len(arrows):,} of {counted(len(jumps), 'jump')} are drawn: an even selection, "
            "and all on the winner's path."
        )
    values = [trial.fitness or 0.0 for trial in data.scored]
    limits = style.sensible_range(values, maximize=data.maximize)
    # On a linear axis a loss that falls by orders of magnitude is a flat line after the first trials.
    log = style.is_wide([value for value in values if limits is None or limits[0] <= value <= limits[1]])
    if limits is not None and not log:
        outside = sum(not limits[0] <= value <= limits[1] for value in values)
        notes.append(f"Outside of the range shown: {counted(outside, 'point')}; double-click to see all.")
    subtitle = "A line is a member; an arrow leads from a donor to the member that took it over"
    figure = style.figure(title, subtitle, height=560, notes=notes)
    figure.add_traces(lines)
    if data.scored:
        figure.add_trace(_best_so_far(data))
    if arrows:
        xs, ys = style.pieces(arrows)
        figure.add_trace(
            go.Scatter(
                x=xs,
                y=ys,
                mode="lines+markers",
                line={"color": style.JUMP, "width": 1.2, "dash": "3px,3px"},
                marker={
                    "color": style.JUMP,
                    "symbol": ["circle", "arrow", "circle"] * len(arrows),
                    "size": [3, 9, 0] * len(arrows),
                    "angleref": "previous",
                },
                opacity=0.85 if len(arrows) <= 60 else 0.45,
                hoverinfo="skip",
                name=counted(len(jumps), "jump"),
            )
        )
    if data.best is not None:
        _add_winner(figure, data, data.best, log=log)
    _add_mishaps(figure, data)
    figure.update_layout(
        xaxis={"title": {"text": "steps spent by the member"}, "rangemode": "tozero", "tickformat": "~s"},
        yaxis={
            "title": {"text": plain(data.metric)},
            "type": "log" if log else None,
            "range": None if log else limits,
        },
        yaxis2={"overlaying": "y", "range": [0, 1], "visible": False, "fixedrange": True},
    )
    return figure


def _place(data: StudyData, trial: TrialRecord) -> tuple[int, float | None]:
    start, end = data.spent[trial.id]
    return start if end is None else end, finite_fitness(trial)


def _member_lines(data: StudyData, notes: list[str]) -> list[Any]:
    """Return one line per member, with gaps where there is no finite fitness."""
    import plotly.graph_objects as go

    path = {trial.id for trial in data.winner_path}
    limit = max(20, POINTS // max(1, len(data.by_member)))
    lines: list[Any] = []
    shown = 0
    for member, trials in data.by_member.items():
        done = [trial for trial in trials if trial.state is TrialState.COMPLETED]
        if not done:
            continue
        on_path = [index for index, trial in enumerate(done) if trial.id in path]
        picked = [
            done[index] for index in style.outline([finite_fitness(trial) for trial in done], limit, on_path)
        ]
        shown += len(picked)
        lines.append(
            go.Scatter(
                x=[_place(data, trial)[0] for trial in picked],
                y=[finite_fitness(trial) for trial in picked],
                text=[hover(trial, data.metric) for trial in picked],
                mode="lines" if len(data.by_member) > 20 else "lines+markers",
                line={"color": style.MUTED, "width": 1},
                marker={"color": style.MUTED, "size": 4},
                name=f"member {member}" if lines else "members",
                legendgroup="members",
                showlegend=not lines,
                meta={"member": member},
            )
        )
    if shown < len(data.completed):
        notes.append(f"The members' lines show {shown:,} of {len(data.completed):,} trials: their outline.")
    return lines


def _jumps(data: StudyData) -> list[tuple[TrialRecord, TrialRecord]]:
    """Return donor and child of every jump where both have a finite fitness."""
    pairs = [(data.lineage.parent(child), data.lineage.trial(child)) for _, child in data.lineage.jumps]
    return [
        (donor, child)
        for donor, child in pairs
        if donor is not None and finite_fitness(donor) is not None and finite_fitness(child) is not None
    ]


def _arrows(data: StudyData, jumps: list[tuple[TrialRecord, TrialRecord]]) -> list[list[tuple[Any, ...]]]:
    path = {trial.id for trial in data.winner_path}
    picked = set(style.kept(len(jumps), ARROWS))
    chosen = [jump for index, jump in enumerate(jumps) if index in picked or jump[1].id in path]
    return [[_place(data, donor), _place(data, child)] for donor, child in chosen]


def _best_so_far(data: StudyData) -> Any:
    import plotly.graph_objects as go

    sign = 1 if data.maximize else -1
    points = sorted((_place(data, t)[0], -sign * (t.fitness or 0.0), t.id) for t in data.scored)
    line: list[tuple[int, float, int]] = []
    for x, worse, trial in points:
        if not line or -sign * line[-1][1] > worse:
            line.append((x, -sign * worse, trial))
    line.append((points[-1][0], *line[-1][1:]))
    return go.Scatter(
        x=[x for x, _, _ in line],
        y=[y for _, y, _ in line],
        mode="lines",
        line={"color": style.BEST, "width": 1.8, "shape": "hv"},
        text=[f"best so far: {score(y)}, trial {trial}" for _, y, trial in line],
        name="best so far",
    )


def _add_winner(figure: "go.Figure", data: StudyData, best: TrialRecord, *, log: bool) -> None:
    places = [_place(data, trial) for trial in data.winner_path]
    figure.add_scatter(
        x=[x for x, _ in places],
        y=[y for _, y in places],
        text=[hover(trial, data.metric) for trial in data.winner_path],
        mode="lines+markers",
        line={"color": style.WINNER, "width": 2.4},
        marker={"color": style.WINNER, "size": [*[5 if len(places) <= 60 else 0] * (len(places) - 1), 10]},
        name="the winner's path",
    )
    x, y = places[-1]
    late = x > 0.6 * max((end or 0 for _, end in data.spent.values()), default=0)
    figure.add_annotation(
        x=x,
        y=math.log10(y) if log and y else y,
        text=f"<b>{plain(score(best.fitness))}</b>  trial {best.id}, member {best.member}",
        showarrow=False,
        xanchor="right" if late else "left",
        yshift=16 if data.maximize else -16,
        font={"color": style.WINNER, "size": 13},
        name="winner",
    )


def _add_mishaps(figure: "go.Figure", data: StudyData) -> None:
    """Mark at the edge of bad values where trials failed and where a fitness is not a finite number."""
    broken = [trial for trial in data.lineage if trial.state is TrialState.FAILED]
    cancelled = [trial for trial in data.lineage if trial.state is TrialState.CANCELLED]
    unfit = [trial for trial in data.completed if finite_fitness(trial) is None]
    infeasible = [trial for trial in unfit if trial.criteria is not None and trial.criteria.infeasible]
    odd = [trial for trial in unfit if trial.criteria is None or not trial.criteria.infeasible]
    for name, trials, symbol in (
        (f"{len(infeasible):,} infeasible", infeasible, "x-thin-open"),
        (f"{len(odd):,} nan or infinite", odd, "triangle-up"),
        (counted(len(broken), "failed trial"), broken, "x"),
        (f"{len(cancelled):,} cancelled", cancelled, "x-open"),
    ):
        picked = [trials[index] for index in style.kept(len(trials), POINTS // 8)]
        if picked:
            figure.add_scatter(
                x=[_place(data, trial)[0] for trial in picked],
                y=[0.012 if data.maximize else 0.988] * len(picked),
                yaxis="y2",
                mode="markers",
                marker={"symbol": symbol, "color": style.FAILED, "size": 8, "opacity": 0.9},
                text=[hover(trial, data.metric) for trial in picked],
                cliponaxis=False,
                name=name,
            )
