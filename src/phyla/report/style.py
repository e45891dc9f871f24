"""The common style of all figures: colours, axes, notes, and limits on how much they draw.

Text is a grey that reads on white and on black. The accents are from the palette of Okabe and Ito, which people
with any kind of colour vision can tell apart; its blue is lightened, to read on black.
"""

import math
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from phyla.formatting import number
from phyla.pages import Table
from phyla.report.formatting import plain, text

if TYPE_CHECKING:
    import plotly.graph_objects as go

ROWS = 100
"""Rows of a table behind a figure; the table behind a matrix has a fifth as many columns."""

T = TypeVar("T")
R = TypeVar("R", bound=tuple[Any, ...])
Figure: TypeAlias = "go.Figure"

INK = "#7b818a"
GRID = "rgba(128,136,148,0.20)"
MUTED = "rgba(128,136,148,0.50)"
CLEAR = "rgba(0,0,0,0)"
WINNER = "#D55E00"
BEST = "#2589C9"
JUMP = "#009E73"
FAILED = "#CC79A7"
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', sans-serif"
SCALE = "Cividis"
PALETTE = (BEST, WINNER, JUMP, FAILED, "#E69F00", "#56B4E9")
"""Colours that distinguish lines."""

NOTES = "notes"
"""Name of the annotations that explain a figure or list what it omits."""
NOTE = {"xref": "paper", "yref": "paper", "showarrow": False}

AXIS = {
    "gridcolor": GRID,
    "zeroline": False,
    "showline": False,
    "ticks": "",
    "automargin": True,
    "title": {"font": {"size": 12}, "standoff": 8},
}
LABEL = {"color": "#f3f4f6", "size": 12, "family": FONT}
TEMPLATE = {
    "layout": {
        "font": {"family": FONT, "size": 12, "color": INK},
        "title": {
            "font": {"size": 17, "color": INK},
            "subtitle": {"font": {"size": 13, "color": INK}},
            "x": 0,
            "xref": "paper",
            "xanchor": "left",
            "y": 1,
            "yref": "container",
            "yanchor": "top",
            "pad": {"t": 14},
        },
        "colorway": PALETTE,
        "paper_bgcolor": CLEAR,
        "plot_bgcolor": CLEAR,
        "modebar": {"bgcolor": CLEAR, "color": MUTED, "activecolor": INK},
        "hovermode": "closest",
        "hoverlabel": {
            "bgcolor": "#20252d",
            "bordercolor": "#20252d",
            "font": LABEL,
            "align": "left",
            "namelength": -1,
        },
        "legend": {"orientation": "h", "x": 0, "xanchor": "left", "y": 1.0, "yanchor": "bottom"},
        "xaxis": AXIS,
        "yaxis": AXIS,
    },
    "data": {
        "scatter": [{"hoverinfo": "text"}],
        "heatmap": [{"hoverinfo": "text", "hoverongaps": False}],
    },
}


def series_colour(place: int) -> str:
    """Return the colour of the line with this index."""
    return PALETTE[place % len(PALETTE)]


def figure(title: str, subtitle: str = "", *, height: int, notes: Sequence[str] = (), **grid: Any) -> Figure:
    """Return a figure without traces, with its title, subtitle and notes.

    `height` is in pixels, without the notes; `grid` are arguments of Plotly's `make_subplots`.
    """
    from plotly.subplots import make_subplots

    drawn = make_subplots(**grid)
    drawn.update_annotations(font_size=13)  # titles of subplots
    drawn.layout.template = TEMPLATE  # update_layout() would merge it with Plotly's default
    drawn.update_layout(
        title={"text": plain(title), "subtitle": {"text": plain(subtitle)}},
        height=height + 18 * len(notes),
        margin={"l": 68, "r": 24, "t": 104, "b": 58 + 18 * len(notes)},
    )
    for row, note in enumerate(notes):
        place = {"x": 0, "y": 0, "xanchor": "left", "yanchor": "top", "yshift": -46 - 18 * row, "align": "left"}
        drawn.add_annotation(NOTE, text=plain(note), name=NOTES, font={"size": 11}, **place)
    return drawn


def panels(title: str, subtitle: str, names: Sequence[str], notes: Sequence[str]) -> tuple[Figure, list[Any]]:
    """Return a figure with a panel for each name, and the grid cell of each panel: `{"row": 1, "col": 1}` etc."""
    columns = min(len(names), 2 if len(names) <= 4 else 3)
    depth = math.ceil(len(names) / columns)
    height = 150 + depth * (330 if depth == 1 else 250)
    grid: dict[str, Any] = {"rows": depth, "cols": columns, "horizontal_spacing": 0.08}
    grid |= {
        "vertical_spacing": min(0.24, 92 / (height - 160)),
        "subplot_titles": [plain(name, 40) for name in names],
    }
    places = [{"row": at // columns + 1, "col": at % columns + 1} for at in range(len(names))]
    return figure(title, subtitle, height=height, notes=notes, **grid), places


def empty(title: str, why: str) -> Figure:
    """Return a figure without data, with the reason as its text."""
    drawn = figure(title, height=220)
    drawn.update_xaxes(visible=False)
    drawn.update_yaxes(visible=False)
    drawn.add_annotation(NOTE, text=plain(why), x=0.5, y=0.5, font={"size": 14})
    return drawn


def categories(names: Sequence[str]) -> dict[str, Any]:
    """Return a vertical axis of names, the first at the top, with a gap between names and data."""
    return {
        "tickmode": "array",
        "tickvals": list(range(len(names))),
        "ticktext": [f"{plain(name, 40)} " for name in names],
        "range": [len(names) - 0.5, -0.5],
        "showgrid": False,
    }


Row: TypeAlias = tuple[Any, ...]
"""A point (x, y), or (x, y, tooltip)."""


def trace(rows: Iterable[Row], name: str, mode: str, **look: Any) -> list[dict[str, Any]]:
    """Return a scatter trace; none without rows."""
    columns = [[_tidy(value) for value in column] for column in zip(*rows, strict=True)]
    data = dict(zip(("x", "y", "text"), columns, strict=False))
    silent = {"hoverinfo": "skip"} if len(columns) == 2 else {}
    return [{"type": "scatter", "name": name, "mode": mode, **data, **silent, **look}] if columns else []


def _tidy(value: Any) -> Any:
    """Return a number rounded to the digits that a figure can show, None for nan; other values unchanged."""
    if not isinstance(value, float):
        return value.item() if hasattr(value, "item") else value
    return float(f"{value:.6g}") if math.isfinite(value) else None


def line(
    rows: Iterable[Row], name: str, colour: str, width: float, *, mode: str = "lines", **look: Any
) -> list[dict[str, Any]]:
    """Return a line trace; none without rows."""
    return trace(rows, name, mode, line_color=colour, line_width=width, **look)


def marks(rows: Iterable[Row], name: str, colour: str, size: float, **look: Any) -> list[dict[str, Any]]:
    """Return a trace of markers; none without rows."""
    return trace(rows, name, "markers", marker_color=colour, marker_size=size, **look)


def band(
    xs: Sequence[float], low: Sequence[float], high: Sequence[float], colour: str, **look: Any
) -> list[dict[str, Any]]:
    """Return a trace that fills the area between two lines."""
    fill = {"fill": "toself", "fillcolor": _faint(colour, 0.2), "line": {"width": 0}}
    edge = [*zip(xs, high, strict=True), *reversed([*zip(xs, low, strict=True)])]
    return trace(edge, "band", "lines", showlegend=False, **fill, **look)


def spread(
    xs: Sequence[float],
    quantiles: Sequence[Sequence[float]],
    colour: str = BEST,
    name: str = "median",
    **look: Any,
) -> list[dict[str, Any]]:
    """Return traces for the quantiles 0.05, 0.25, 0.5, 0.75, 0.95 of a population: two bands, and the median."""
    low, lower, middle, upper, high = ([*zip(xs, values, strict=True)] for values in quantiles)
    edge: dict[str, Any] = {"showlegend": False, "hoverinfo": None, **look}
    drawn = []
    for below, above, names, strength in (
        (low, high, ("5 %", "95 %"), 0.15),
        (lower, upper, ("25 %", "75 %"), 0.25),
    ):
        drawn += line(below, names[0], CLEAR, 0, **edge)
        drawn += line(above, names[1], CLEAR, 0, fill="tonexty", fillcolor=_faint(colour, strength), **edge)
    return [*drawn, *line(middle, name, colour, 1.8, hoverinfo=None, **look)]


def _faint(colour: str, strength: float) -> str:
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red},{green},{blue},{strength})"


def heat(
    name: str,
    xs: Sequence[float],
    cells: Any,
    scale: Sequence[tuple[float, str]],
    limits: tuple[float, float],
    **look: Any,
) -> dict[str, Any]:
    """Return a matrix of cells over a horizontal axis, without a colour bar."""
    data = {"type": "heatmap", "name": name, "x": [_tidy(float(x)) for x in xs], "z": cells, "colorscale": scale}
    return {**data, "zmin": limits[0], "zmax": limits[1], "showscale": False, "hoverinfo": None, **look}


def colorbar(title: str = "", **more: Any) -> dict[str, Any]:
    """Return a thin colour bar."""
    return {"title": {"text": plain(title), "side": "right"}, "thickness": 10, "outlinewidth": 0, **more}


def menu(buttons: Sequence[Any]) -> dict[str, Any]:
    """Return a menu at the lower right, away from Plotly's tools, in fixed colours that suit its highlight."""
    place = {"x": 1, "xanchor": "right", "y": 0, "yanchor": "top", "direction": "up", "pad": {"t": 28}}
    return {"buttons": buttons, "font": {"color": "#20252d"}, "bgcolor": "#e3e7ed", "bordercolor": GRID, **place}


def pieces(lines: Iterable[Sequence[Row]]) -> list[Row]:
    """Join the rows of several lines into one trace, with a gap after each line."""
    return [row for line in lines for row in (*line, (None,) * len(line[0]))]


def pick_evenly(items: Sequence[T], limit: int) -> list[T]:
    """Return at most `limit` evenly spread items, including the first and the last."""
    last = len(items) - 1
    if last < limit:
        return list(items)
    return [items[at] for at in sorted({round(place * last / (limit - 1)) for place in range(limit)})]


def outline(rows: Sequence[R], limit: int) -> list[R]:
    """Return about `limit` rows: the extremes of each interval, the first and the last."""
    count = len(rows)
    if count <= limit:
        return list(rows)
    chosen, length = {0, count - 1}, -(-2 * count // limit)
    for start in range(0, count, length):
        known = [at for at in range(start, min(start + length, count)) if rows[at][1] is not None]
        chosen.update(pick(known, key=lambda at: rows[at][1]) for pick in (min, max) if known)
    return [rows[at] for at in sorted(chosen)]


def is_wide(values: Collection[float]) -> bool:
    """Return whether these values need a log axis: all are positive, and they span orders of magnitude."""
    return bool(values) and min(values) > 0 and max(values) > 20 * min(values)


def sensible_range(
    values: Sequence[float], *, maximize: bool, always: Iterable[float] = ()
) -> tuple[float, float] | None:
    """Return an axis range without the few worst values, if they would flatten the rest; it includes `always`."""
    ordered = sorted(values)
    if len(ordered) < 20:
        return None
    low, high = ordered[len(ordered) // 50], ordered[-1 - len(ordered) // 50]
    low, high = (low, ordered[-1]) if maximize else (ordered[0], high)
    span = high - low
    if span <= 0 or ordered[-1] - ordered[0] <= 3 * span:
        return None
    return min([low, *always]) - 0.08 * span, max([high, *always]) + 0.08 * span


def tables(drawn: Figure) -> list[Table]:
    """Return the data of a figure as tables: one for lines of a panel with the same x values, one per matrix.

    A table has at most 100 rows, an even selection, and its title says so. Traces without a name are left out.
    """
    groups: dict[tuple[Any, ...], list[Any]] = {}
    for at, trace in enumerate(drawn.data):
        if trace.name:
            # A trace with a tooltip per point gets a table of its own.
            key = (
                (at,)
                if trace.type == "heatmap" or trace.text is not None
                else (trace.xaxis, trace.yaxis, *trace.x)
            )
            groups.setdefault(key, []).append(trace)
    return [
        _matrix(drawn, *traces) if traces[0].type == "heatmap" else _lines(drawn, traces)
        for traces in groups.values()
    ]


def _lines(drawn: Figure, traces: Sequence[Any]) -> Table:
    first, (across, down) = traces[0], _axes(drawn, traces[0])
    picked = [at for at, place in enumerate(first.x) if place is not None]
    places = pick_evenly(picked, ROWS)
    below = next((axis.title.text for axis in drawn.select_xaxes() if axis.title.text), "")
    heading, of = text(across.title.text or below), text(down.title.text or "")
    columns = [heading, *((text(trace.name) for trace in traces) if len(traces) > 1 else [of])]
    rows = [[_label(across, first.x[at]), *(_label(down, trace.y[at]) for trace in traces)] for at in places]
    more = [] if first.text is None else ["what"]
    for row, at in zip(rows, places, strict=True):
        row += [text(first.text[at]) for _ in more]
    title = ": ".join(filter(None, [first.meta, of if len(traces) > 1 else text(first.name)]))
    return Table(
        name="",
        title=title + _cut(places, picked, "points"),
        columns=[*map(">{}".format, columns), *more],
        rows=rows,
    )


def _matrix(drawn: Figure, trace: Any) -> Table:
    across, down = _axes(drawn, trace)
    cells = trace.z if trace.text is None else trace.text
    every = range(len(cells[0]))
    places = pick_evenly(every, ROWS // 5)
    columns = ["", *(_label(across, at if trace.x is None else trace.x[at]) for at in places)]
    rows = [
        [_label(down, at), *(_label(None, row[column]) for column in places)]
        for at, row in enumerate(cells[:ROWS])
    ]
    title = ": ".join(filter(None, [trace.meta, trace.name])) + _cut(places, every, "columns")
    return Table(name="", title=title, columns=columns, rows=rows)


def _axes(drawn: Figure, trace: Any) -> tuple[Any, Any]:
    return drawn.layout[f"xaxis{(trace.xaxis or '')[1:]}"], drawn.layout[f"yaxis{(trace.yaxis or '')[1:]}"]


def _label(axis: Any, value: Any) -> str:
    """Return the label of a value on an axis."""
    if axis is not None and axis.ticktext is not None and value in axis.tickvals:
        return text(axis.ticktext[axis.tickvals.index(value)]).strip()
    return "-" if value is None else text(value) if isinstance(value, str) else number(value)


def take_heading(figure: Figure) -> tuple[str, str]:
    """Remove the title and subtitle of a figure, and their space; return them as plain text."""
    title = figure.layout.title
    heading = text(title.text or ""), text(title.subtitle.text or "")
    figure.layout.title = None
    figure.layout.margin.t = 44
    figure.layout.height -= 60
    return heading


def _cut(places: Sequence[Any], every: Sequence[Any], noun: str) -> str:
    return f" ({len(places)} of {len(every):,} {noun})" if len(places) < len(every) else ""
