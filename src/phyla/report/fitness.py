"""Fitness of every member over its own clock."""

import math
from typing import TYPE_CHECKING, Any

from phyla.records import TrialRecord, TrialState
from phyla.report import style
from phyla.report.data import StudyData, finite_fitness
from phyla.report.words import counted, hover, plain, score

if TYPE_CHECKING:
    import plotly.graph_objects as go

POINTS = 8_000
"""Points of all members' lines together; beyond, lines keep their outline only."""
LOG_RATIO = 20
"""Positive values that span more than this are drawn on a log axis."""

ARROWS = 300
"""Jumps that are drawn; beyond, an even choice of them, and all on the winner's path."""


def fitness_figure(data: StudyData) -> "go.Figure":
    """Return the fitness of every member over the steps it has spent.

    One muted line per member; on top the best of all so far, an arrow from donor to child for every jump, and
    the path that the winner's weights took. Trials that failed, are infeasible, or whose fitness is no finite
    number, lie along the edge where bad values are.
    """
    title = f"Fitness of every member: {data.metric}, {data.direction}"
    if not any(trial.state is TrialState.COMPLETED for trial in data.lineage):
        return style.empty(title, "No trial has completed yet.")
    import plotly.graph_objects as go

    jumps = _jumps(data)
    drawn_jumps = _chosen(data, jumps)
    notes: list[str] = []
    lines = _member_lines(data, {trial.id for trial in data.winner_path}, notes)
    if len(drawn_jumps) < len(jumps):
        notes.append(
            f"{len(drawn_jumps):,} of {counted(len(jumps), 'jump')} are drawn: an even choice, "
            "and all on the winner's path."
        )
    values = [trial.fitness or 0.0 for trial in data.scored]
    limits = style.sensible_range(values, maximize=data.maximize)
    # On a linear axis a loss that falls by orders of magnitude is a flat line after the first trials.
    usual = [value for value in values if limits is None or limits[0] <= value <= limits[1]]
    log = bool(usual) and min(usual) > 0 and max(usual) > LOG_RATIO * min(usual)
    limits = None if log else limits
    if limits is not None:
        outside = sum(not limits[0] <= value <= limits[1] for value in values)
        notes.append(f"Outside of the range shown: {counted(outside, 'point')}; double-click to see all.")
    figure = style.figure(
        title,
        "A line is a member, an arrow leads from a donor to the member that took it over",
        height=560,
        notes=notes,
    )
    figure.add_traces(lines)
    if data.scored:
        figure.add_trace(_best_so_far(go, data))
    if drawn_jumps:
        figure.add_trace(_arrows(go, data, drawn_jumps, counted(len(jumps), "jump")))
    if data.best is not None:
        figure.add_trace(_winner(go, data))
        _label_winner(figure, data, data.best, log=log)
    _add_mishaps(figure, go, data)
    figure.update_layout(
        xaxis=style.axis("steps spent by the member", rangemode="tozero", tickformat="~s"),
        yaxis=style.axis(data.metric, type="log") if log else style.axis(data.metric, range=limits),
        yaxis2={"overlaying": "y", "range": [0, 1], "visible": False, "fixedrange": True},
    )
    return figure


def _place(data: StudyData, trial: TrialRecord) -> tuple[int, float | None]:
    spent = data.spent[trial.id]
    return spent.start if spent.end is None else spent.end, finite_fitness(trial)


def _member_lines(data: StudyData, always: set[int], notes: list[str]) -> list[Any]:
    """Return one line per member, with gaps where there is no finite fitness."""
    import plotly.graph_objects as go

    limit = max(20, POINTS // max(1, len(data.by_member)))
    lines, shown, total, first = [], 0, 0, True
    crowded = len(data.by_member) > 20
    for member, trials in data.by_member.items():
        done = [trial for trial in trials if trial.state is TrialState.COMPLETED]
        if not done:
            continue
        known = [finite_fitness(trial) for trial in done]
        finite = [value for value in known if value is not None]
        filler = sum(finite) / len(finite) if finite else 0.0
        keep = {index for index, trial in enumerate(done) if trial.id in always}
        picked = style.outline([filler if value is None else value for value in known], limit, keep)
        shown, total = shown + len(picked), total + len(done)
        lines.append(
            go.Scatter(
                x=[_place(data, done[index])[0] for index in picked],
                y=[known[index] for index in picked],
                text=[hover(done[index], data.metric) for index in picked],
                hoverinfo="text",
                mode="lines" if crowded else "lines+markers",
                line={"color": style.MUTED, "width": 1},
                marker={"color": style.MUTED, "size": 4},
                connectgaps=False,
                name="members" if first else f"member {member}",
                legendgroup="members",
                showlegend=first,
                meta={"member": member},
            )
        )
        first = False
    if shown < total:
        notes.append(f"The members' lines show {shown:,} of {total:,} trials and keep their outline.")
    return lines


def _jumps(data: StudyData) -> list[tuple[TrialRecord, TrialRecord]]:
    """Return donor and child of every jump that both have a finite fitness."""
    found = []
    for _, child in data.lineage.jumps:
        donor, trial = data.lineage.parent(child), data.lineage.trial(child)
        if donor is not None and finite_fitness(donor) is not None and finite_fitness(trial) is not None:
            found.append((donor, trial))
    return found


def _chosen(
    data: StudyData, jumps: list[tuple[TrialRecord, TrialRecord]]
) -> list[tuple[TrialRecord, TrialRecord]]:
    if len(jumps) <= ARROWS:
        return jumps
    path = {trial.id for trial in data.winner_path}
    picked = set(style.kept(len(jumps), ARROWS))
    return [jump for index, jump in enumerate(jumps) if index in picked or jump[1].id in path]


def _arrows(go: Any, data: StudyData, jumps: list[tuple[TrialRecord, TrialRecord]], name: str) -> Any:
    xs: list[float | None] = []
    ys: list[float | None] = []
    for donor, child in jumps:
        for x, y in (_place(data, donor), _place(data, child), (None, None)):
            xs.append(x)
            ys.append(y)
    return go.Scatter(
        x=xs,
        y=ys,
        mode="lines+markers",
        line={"color": style.JUMP, "width": 1.2, "dash": "3px,3px"},
        marker={
            "color": style.JUMP,
            "symbol": ["circle", "arrow", "circle"] * len(jumps),
            "size": [3, 9, 0] * len(jumps),
            "angleref": "previous",
        },
        opacity=0.85 if len(jumps) <= 60 else 0.45,
        hoverinfo="skip",
        name=name,
    )


def _best_so_far(go: Any, data: StudyData) -> Any:
    """Return the envelope of all members: the best fitness of any, by steps spent."""
    sign = 1 if data.maximize else -1
    points = sorted((_place(data, t)[0], -sign * (t.fitness or 0.0), t.id) for t in data.scored)
    steps: list[tuple[int, float, int]] = []
    for x, worse, trial in points:
        if not steps or -sign * steps[-1][1] > worse:
            steps.append((x, -sign * worse, trial))
    steps.append((points[-1][0], *steps[-1][1:]))
    return go.Scatter(
        x=[x for x, _, _ in steps],
        y=[y for _, y, _ in steps],
        mode="lines",
        line={"color": style.BEST, "width": 1.8, "shape": "hv"},
        text=[f"best so far: {score(y)}, trial {trial}" for _, y, trial in steps],
        hoverinfo="text",
        name="best so far",
    )


def _winner(go: Any, data: StudyData) -> Any:
    places = [_place(data, trial) for trial in data.winner_path]
    crowded = len(places) > 60
    return go.Scatter(
        x=[x for x, _ in places],
        y=[y for _, y in places],
        text=[hover(trial, data.metric) for trial in data.winner_path],
        hoverinfo="text",
        mode="lines" if crowded else "lines+markers",
        line={"color": style.WINNER, "width": 2.4},
        marker={"color": style.WINNER, "size": 5},
        name="the winner's path",
    )


def _label_winner(figure: Any, data: StudyData, best: TrialRecord, *, log: bool) -> None:
    x, y = _place(data, best)
    furthest = max((spent.end or 0 for spent in data.spent.values()), default=0)
    late = x > 0.6 * furthest
    figure.add_trace(
        type(figure.data[0])(
            x=[x],
            y=[y],
            mode="markers",
            marker={"color": style.WINNER, "size": 10, "line": {"color": "#fff", "width": 1.5}},
            hoverinfo="skip",
            showlegend=False,
            name="winner",
        )
    )
    figure.add_annotation(
        x=x,
        y=math.log10(y) if log and y else y,
        text=f"<b>{plain(score(best.fitness))}</b>  trial {best.id}, member {best.member}",
        showarrow=False,
        xanchor="right" if late else "left",
        xshift=4 if late else -4,
        yshift=16 if data.maximize else -16,
        font={"color": style.WINNER, "size": 13},
        name="winner",
    )


def _add_mishaps(figure: Any, go: Any, data: StudyData) -> None:
    """Mark at the edge of bad values where trials failed and where a fitness is no finite number."""
    broken = [trial for trial in data.lineage if trial.state is TrialState.FAILED]
    cancelled = [trial for trial in data.lineage if trial.state is TrialState.CANCELLED]
    unfit = [trial for trial in data.completed if finite_fitness(trial) is None]
    odd = [trial for trial in unfit if trial.criteria is None or not trial.criteria.infeasible]
    infeasible = [trial for trial in unfit if trial not in odd]
    for name, trials, symbol in (
        (f"{len(infeasible):,} infeasible", infeasible, "x-thin-open"),
        (f"{len(odd):,} nan or infinite", odd, "triangle-up"),
        (counted(len(broken), "failed trial"), broken, "x"),
        (f"{len(cancelled):,} cancelled", cancelled, "x-open"),
    ):
        if not trials:
            continue
        picked = [trials[index] for index in style.kept(len(trials), POINTS // 8)]
        figure.add_trace(
            go.Scatter(
                x=[_place(data, trial)[0] for trial in picked],
                y=[0.012 if data.maximize else 0.988] * len(picked),
                yaxis="y2",
                mode="markers",
                marker={"symbol": symbol, "color": style.FAILED, "size": 8, "opacity": 0.9},
                text=[hover(trial, data.metric) for trial in picked],
                hoverinfo="text",
                cliponaxis=False,
                name=name,
            )
        )
