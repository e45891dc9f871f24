"""Hyperparameters over the age of the weights, one small figure each."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

from phyla.records import Json, TrialRecord
from phyla.report import style
from phyla.report.data import StudyData
from phyla.report.words import counted, number, plain, short

if TYPE_CHECKING:
    import plotly.graph_objects as go

PANELS = 24
"""Hyperparameters that get a panel."""
PIECES = 24_000
"""Straight pieces of all panels together; beyond, fewer members are drawn."""
CATEGORIES = 40
"""Categories that get a label of their own."""
LOG_RATIO = 50
"""Positive values that span more than this are drawn on a log axis when the space says nothing."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """How one hyperparameter is drawn.

    Attributes:
        name: its flat name.
        log: whether its axis is logarithmic.
        categories: its values in order, if it is drawn by category; else None.
        ordered: whether the order of the categories means something.
    """

    name: str
    log: bool
    categories: tuple[Json, ...] | None
    ordered: bool = False

    def height(self, value: Json, member: int, members: int) -> float | None:
        """Return where a value lies on the panel's axis; members of one category lie beside each other."""
        if self.categories is None:
            return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None
        place = next(index for index, known in enumerate(self.categories) if same(known, value))
        return place + (0.0 if members < 2 else 0.5 * (member / (members - 1) - 0.5))


def schedules_figure(data: StudyData) -> "go.Figure":
    """Return one panel per hyperparameter: every member's values, the winner's schedule on top.

    The axis is the age of the weights, so a member's line breaks where it takes over others.
    """
    title = "Hyperparameters of every member"
    panels = panels_of(data)
    if not panels:
        why = "The search space has no hyperparameters." if len(data.lineage) else "No trial has started yet."
        return style.empty(title, why)
    from plotly.subplots import make_subplots

    notes: list[str] = []
    if len(panels) > PANELS:
        notes.append(f"The first {PANELS} of {len(panels)} hyperparameters are shown.")
        panels = panels[:PANELS]
    members = _drawn_members(data, len(panels), notes)
    columns = 1 if len(panels) == 1 else 2 if len(panels) <= 4 else 3
    rows = math.ceil(len(panels) / columns)
    height = 130 + 18 * len(notes) + rows * (340 if rows == 1 else 250)
    grid = make_subplots(
        rows=rows,
        cols=columns,
        subplot_titles=[plain(short(panel.name, 40)) for panel in panels],
        horizontal_spacing=0.08,
        vertical_spacing=min(0.2, 78 / (height - 160)) if rows > 1 else 0.0,
    )
    grid.update_annotations(font={"size": 13, "color": style.INK}, xanchor="center")
    styled = style.figure(
        title, "Grey: every member; orange: the schedule that made the winner", height=height, notes=notes
    )
    for annotation in styled.layout.annotations:
        grid.add_annotation(annotation)
    styled.layout.annotations = ()
    grid.update_layout(styled.layout)
    for index, panel in enumerate(panels):
        where = {"row": index // columns + 1, "col": index % columns + 1}
        grid.add_trace(_members(data, panel, members, first=index == 0), **where)
        if data.schedule is not None:
            grid.add_trace(_winner(data, panel, first=index == 0), **where)
        bottom = index + columns >= len(panels)
        label = "age of the weights (steps)" if bottom else ""
        grid.update_xaxes(style.axis(label, rangemode="tozero", tickformat="~s", nticks=6), **where)
        grid.update_yaxes(_value_axis(panel, _numbers(data, panel.name)), **where)
    grid.update_layout(showlegend=False)
    return grid


def panels_of(data: StudyData) -> list[Panel]:
    """Return the study's hyperparameters in the order of its space, or of appearance."""
    described = _described(data)
    values: dict[str, list[Json]] = {name: [] for name in described}
    for trial in data.lineage:
        for name, value in trial.params.items():
            values.setdefault(name, []).append(value)
    return [_panel(name, seen, described.get(name, {})) for name, seen in values.items() if seen]


def _described(data: StudyData) -> dict[str, Mapping[str, Json]]:
    """Return what the configuration says about each hyperparameter; nothing if it says it in another way."""
    space = data.study.config.get("space")
    entries = space.get("parameters") if isinstance(space, Mapping) else None
    if not isinstance(entries, Sequence) or isinstance(entries, str):
        return {}
    found: dict[str, Mapping[str, Json]] = {}
    for entry in entries:
        name = entry.get("name") if isinstance(entry, Mapping) else None
        if isinstance(entry, Mapping) and isinstance(name, str):
            found[name] = entry
    return found


def _panel(name: str, seen: list[Json], entry: Mapping[str, Json]) -> Panel:
    numeric = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in seen)
    if not numeric or entry.get("kind") in ("choice", "ordinal"):
        listed = entry.get("values")
        known: list[Json] = list(listed) if isinstance(listed, Sequence) and not isinstance(listed, str) else []
        for value in seen:
            if not any(same(value, other) for other in known):
                known.append(value)
        return Panel(name=name, log=False, categories=tuple(known), ordered=entry.get("kind") == "ordinal")
    numbers = [float(value) for value in seen if isinstance(value, (int, float))]
    log = entry.get("log")
    if not isinstance(log, bool):
        log = "low" not in entry and min(numbers) > 0 and max(numbers) > LOG_RATIO * min(numbers)
    return Panel(name=name, log=log and min(numbers) > 0, categories=None)


def _numbers(data: StudyData, name: str) -> list[float]:
    found = (trial.params.get(name) for trial in data.lineage)
    return [float(value) for value in found if isinstance(value, (int, float))]


def same(one: Json, other: Json) -> bool:
    """Return whether two values of a hyperparameter are one. Tell True from 1, which are equal in Python."""
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def _drawn_members(data: StudyData, panels: int, notes: list[str]) -> list[int]:
    pieces = len(data.lineage) * panels
    members = list(data.by_member)
    if pieces <= PIECES:
        return members
    limit = max(8, int(len(members) * PIECES / pieces))
    picked = [members[index] for index in style.kept(len(members), limit)]
    if len(picked) < len(members):
        notes.append(f"Every few members: {len(picked)} of {counted(len(members), 'member')} are drawn in grey.")
    return picked


def _members(data: StudyData, panel: Panel, members: list[int], *, first: bool) -> Any:
    """Return all members' values as one trace; a break is where a line ends."""
    import plotly.graph_objects as go

    xs: list[int | None] = []
    ys: list[float | None] = []
    text: list[str | None] = []
    size = len(data.by_member)
    for member in members:
        runs = _runs(data.by_member[member], panel.name)
        for index, (start, end, value, trial) in enumerate(runs[: PIECES // len(members)]):
            height = panel.height(value, member, size)
            if xs and (index == 0 or xs[-1] != start):
                xs.append(None)
                ys.append(None)
                text.append(None)
            label = f"member {member}, from trial {trial}<br>{plain(short(number(value), 60))}"
            xs += [start, end]
            ys += [height, height]
            text += [label, label]
    return go.Scatter(
        x=xs,
        y=ys,
        text=text,
        hoverinfo="text",
        mode="lines",
        line={"color": style.MUTED, "width": 1.1},
        connectgaps=False,
        name="members",
        showlegend=first,
    )


def _runs(trials: list[TrialRecord], name: str) -> list[tuple[int, int, Json, int]]:
    """Return (start, end, value, first trial) of every stretch in which a member's value did not change."""
    runs: list[tuple[int, int, Json, int]] = []
    for trial in trials:
        if name not in trial.params or trial.reached_step is None:
            continue
        value = trial.params[name]
        if runs and runs[-1][1] == trial.start_step and same(runs[-1][2], value):
            runs[-1] = (runs[-1][0], trial.reached_step, value, runs[-1][3])
        else:
            runs.append((trial.start_step, trial.reached_step, value, trial.id))
    return runs


def _winner(data: StudyData, panel: Panel, *, first: bool) -> Any:
    import plotly.graph_objects as go

    xs: list[int | None] = []
    ys: list[float | None] = []
    text: list[str | None] = []
    member = data.best.member if data.best else 0
    for start, end, value, trial in _runs(list(data.winner_path), panel.name):
        if xs and xs[-1] != start:
            xs.append(None)
            ys.append(None)
            text.append(None)
        height = panel.height(value, member, len(data.by_member))
        label = f"the winner, steps {start:,} to {end:,}, from trial {trial}<br>{plain(short(number(value), 60))}"
        xs += [start, end]
        ys += [height, height]
        text += [label, label]
    return go.Scatter(
        x=xs,
        y=ys,
        text=text,
        hoverinfo="text",
        mode="lines",
        line={"color": style.WINNER, "width": 2.6},
        connectgaps=False,
        name="the winner's schedule",
        showlegend=first,
    )


def _value_axis(panel: Panel, values: Sequence[float]) -> dict[str, Any]:
    if panel.categories is not None:
        places = style.kept(len(panel.categories), CATEGORIES)
        return style.axis(
            tickmode="array",
            tickvals=places,
            ticktext=[plain(short(number(panel.categories[place]), 24)) for place in places],
            range=[-0.5, len(panel.categories) - 0.5],
        )
    if not panel.log:
        return style.axis(exponentformat="SI", nticks=6)
    decades = math.log10(max(values) / min(values)) if values else 0.0
    ticks: dict[str, Any] = {"dtick": math.ceil(decades / 5)} if decades > 1.5 else {"nticks": 4}
    return style.axis(type="log", tickformat=".3~g", **ticks)
