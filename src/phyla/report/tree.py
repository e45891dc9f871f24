"""The lineage tree: trials by generation and member, and where their weights came from."""

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from phyla.records import TrialRecord, TrialState
from phyla.report import style
from phyla.report.data import StudyData, finite_fitness
from phyla.report.words import counted, hover, plain

if TYPE_CHECKING:
    import plotly.graph_objects as go

GIVEN_UP = (TrialState.FAILED, TrialState.CANCELLED)
NODES = 20_000
"""Trials that are drawn; beyond, the newest ones and the winner's path."""
TOLD = 5_000
"""Trials up to which everything about them appears under the pointer; beyond, only the numbers."""
SVG = 3_000
"""Trials up to which they are drawn as SVG; beyond, by WebGL."""


def lineage_figure(data: StudyData) -> "go.Figure":
    """Return the lineage tree: generations to the right, a row per member, colour for fitness.

    Grey edges lead from the trial whose weights were taken; dashed ones from the trial that was abandoned;
    the bold path is the winner's ancestry; crosses are trials that failed, grey ones were cancelled.
    """
    title = "Lineage"
    trials = list(data.lineage)
    if not trials:
        return style.empty(title, "No trial has started yet.")
    import plotly.graph_objects as go

    notes: list[str] = []
    if len(trials) > NODES:
        path = {trial.id for trial in data.winner_path}
        trials = [t for index, t in enumerate(trials) if index >= len(trials) - NODES or t.id in path]
        notes.append(
            f"The newest {NODES:,} of {counted(len(data.lineage), 'trial')} are drawn, and the winner's path."
        )
    kind: Any = go.Scatter if len(trials) <= SVG else go.Scattergl
    rows = len(data.by_member)
    row_height = 34 if rows <= 12 else 22 if rows <= 30 else 12 if rows <= 120 else 6
    generations = max(trial.generation for trial in trials) + 1
    size = max(3.0, min(13.0, 0.55 * min(row_height, 1000 / generations)))
    figure = style.figure(
        title,
        "Weights come along grey edges; dashed edges leave what a member abandoned; the bold path made the winner",
        height=180 + 18 * len(notes) + max(3, rows) * row_height,
        notes=notes,
    )
    places = _places(trials)
    _add_edges(figure, kind, trials, places, size)
    on_top = size <= 6
    if not on_top:
        _add_path(figure, kind, data, places, size)
    _add_nodes(figure, kind, data, trials, places, size)
    if on_top:
        _add_path(figure, kind, data, places, size)
    figure.update_layout(
        xaxis=style.axis("generation (completed trials of the member)", showgrid=False, tickformat=",d"),
        yaxis=style.axis(
            "member",
            showgrid=False,
            tickmode="array",
            tickvals=style.kept(rows, 34),
            range=[rows - 0.5, -0.5],
        ),
    )
    pad = max(0.4, 0.02 * generations)
    figure.update_xaxes(range=[-pad, generations - 1 + pad], dtick=1 if generations <= 12 else None)
    return figure


def _places(trials: list[TrialRecord]) -> dict[int, tuple[float, float]]:
    """Return where each trial is drawn; a failed or stopped one a little before the one that replaced it."""
    tries: dict[tuple[int, int], int] = {}
    places: dict[int, tuple[float, float]] = {}
    for trial in trials:
        back = 0.0
        if trial.state in GIVEN_UP:
            slot = (trial.member, trial.generation)
            tries[slot] = tries.get(slot, 0) + 1
            back = 0.5 - 0.5 / (tries[slot] + 1)
        places[trial.id] = (trial.generation - back, float(trial.member))
    return places


def _add_edges(
    figure: Any, kind: Any, trials: list[TrialRecord], places: dict[int, tuple[float, float]], size: float
) -> None:
    shown = [trial for trial in trials if trial.state not in GIVEN_UP]
    parents = [(trial.parent, trial.id) for trial in shown if trial.parent is not None]
    jumps = [(trial.jump_from, trial.id) for trial in shown if trial.jump_from is not None]
    width, opacity = (1.4, 1.0) if size > 6 else (0.9, 0.5)
    grey = {"color": style.MUTED, "width": width}
    dashed = {"color": style.JUMP, "width": width, "dash": "dot"}
    for name, pairs, line in (("weights taken from", parents, grey), ("abandoned", jumps, dashed)):
        if pairs:
            figure.add_trace(_line(kind, pairs, places, line=line, name=name, opacity=opacity))


def _add_path(
    figure: Any, kind: Any, data: StudyData, places: dict[int, tuple[float, float]], size: float
) -> None:
    path = [trial.id for trial in data.winner_path]
    if len(path) > 1:
        line = {"color": style.WINNER, "width": 3 if size > 6 else 2.4}
        figure.add_trace(_line(kind, list(pairwise(path)), places, line=line, name="the winner's path"))


def _line(kind: Any, pairs: Sequence[tuple[int, int]], places: dict[int, tuple[float, float]], **look: Any) -> Any:
    """Return edges as one trace, with a gap after each."""
    xs: list[float | None] = []
    ys: list[float | None] = []
    for origin, target in pairs:
        if origin in places and target in places:
            points = _edge(places[origin], places[target])
            xs += [*(x for x, _ in points), None]
            ys += [*(y for _, y in points), None]
    return kind(x=xs, y=ys, mode="lines", hoverinfo="skip", **look)


def _edge(origin: tuple[float, float], target: tuple[float, float]) -> list[tuple[float, float]]:
    """Return the points of an edge: straight, or bowed if it would run through the nodes of one generation."""
    (x0, y0), (x1, y1) = origin, target
    if x1 > x0 or abs(y1 - y0) <= 1:
        return [origin, target]
    bow = min(0.4, 0.12 + 0.04 * abs(y1 - y0))
    parts = [part / 8 for part in range(9)]
    return [(x0 + part * (x1 - x0) + 4 * part * (1 - part) * bow, y0 + part * (y1 - y0)) for part in parts]


def _add_nodes(
    figure: Any,
    kind: Any,
    data: StudyData,
    trials: list[TrialRecord],
    places: dict[int, tuple[float, float]],
    size: float,
) -> None:
    scored = [trial for trial in trials if finite_fitness(trial) is not None]
    rest = [trial for trial in trials if finite_fitness(trial) is None]
    unfinished = (TrialState.RUNNING, TrialState.PENDING)
    values = [trial.fitness or 0.0 for trial in scored]
    limits = style.sensible_range(values, maximize=data.maximize) or (
        min(values, default=0),
        max(values, default=1),
    )
    groups = (
        (
            "fitness",
            scored,
            {
                "color": values,
                "colorscale": style.SCALE,
                "reversescale": not data.maximize,
                "cmin": limits[0],
                "cmax": limits[1],
                "size": size,
                "line": {"color": style.INK, "width": 0.6 if size > 5 else 0},
                "colorbar": {
                    "title": {"text": plain(data.metric), "side": "right"},
                    "thickness": 10,
                    "outlinewidth": 0,
                    "ticks": "",
                },
            },
        ),
        (
            "nan or infinite",
            [trial for trial in rest if trial.state is TrialState.COMPLETED],
            {"symbol": "circle-open", "color": style.FAILED, "size": size, "line": {"width": 1.6}},
        ),
        (
            "failed",
            [trial for trial in rest if trial.state is TrialState.FAILED],
            {"symbol": "x", "color": style.FAILED, "size": 0.8 * size},
        ),
        (
            "cancelled",
            [trial for trial in rest if trial.state is TrialState.CANCELLED],
            {"symbol": "x", "color": style.MUTED, "size": 0.8 * size},
        ),
        (
            "unfinished",
            [trial for trial in rest if trial.state in unfinished],
            {"symbol": "circle-open", "color": style.INK, "size": size, "line": {"width": 1.4}},
        ),
    )
    for name, group, marker in groups:
        if group:
            figure.add_trace(
                kind(
                    x=[places[trial.id][0] for trial in group],
                    y=[places[trial.id][1] for trial in group],
                    mode="markers",
                    marker=marker,
                    name=name,
                    showlegend=name != "fitness",
                    **_told(group, data, full=len(trials) <= TOLD),
                )
            )


def _told(group: list[TrialRecord], data: StudyData, *, full: bool) -> dict[str, Any]:
    """Return what appears under the pointer."""
    if full:
        return {"text": [hover(trial, data.metric) for trial in group], "hoverinfo": "text"}
    return {
        "customdata": [trial.id for trial in group],
        "hovertemplate": "trial %{customdata}, member %{y}, generation %{x}<br>%{marker.color}<extra></extra>"
        if finite_fitness(group[0]) is not None
        else "trial %{customdata}, member %{y}, generation %{x}<extra></extra>",
    }
