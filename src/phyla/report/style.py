"""What all figures look like: colours, axes, notes, and how much they draw.

Backgrounds are transparent and all text is a grey that reads on white and on black, so that a figure looks
right in a notebook, in a report and on a dashboard of any theme. The accents are from Okabe and Ito's palette,
which people with any kind of colour vision can tell apart.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from phyla.report.words import plain

if TYPE_CHECKING:
    import plotly.graph_objects as go

INK = "#7b818a"
GRID = "rgba(128,136,148,0.20)"
MUTED = "rgba(128,136,148,0.50)"
WINNER = "#D55E00"
BEST = "#0072B2"
JUMP = "#009E73"
FAILED = "#CC79A7"
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', sans-serif"
SCALE = "Cividis"
PALETTE = (BEST, WINNER, JUMP, FAILED, "#E69F00", "#56B4E9")
"""Colours of lines that are to be told apart."""

NOTES = "notes"
"""Name of the annotation that says what a figure leaves out."""


def figure(title: str, subtitle: str, *, height: int, notes: Sequence[str] = ()) -> "go.Figure":
    """Return a figure without traces.

    Args:
        title: what it shows, with units.
        subtitle: how to read it, in one line.
        height: pixels.
        notes: what it leaves out.
    """
    import plotly.graph_objects as go

    drawn = go.Figure()
    drawn.update_layout(
        template="none",
        title={
            "text": plain(title),
            "subtitle": {"text": plain(subtitle), "font": {"size": 13, "color": INK}},
            "font": {"size": 17, "color": INK},
            "x": 0,
            "xref": "paper",
            "xanchor": "left",
            "y": 1,
            "yref": "container",
            "yanchor": "top",
            "pad": {"t": 14},
        },
        font={"family": FONT, "size": 12, "color": INK},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        height=height,
        margin={"l": 68, "r": 24, "t": 104, "b": 58 + 18 * len(notes)},
        modebar={"bgcolor": "rgba(0,0,0,0)", "color": MUTED, "activecolor": INK},
        hovermode="closest",
        hoverlabel={
            "bgcolor": "#20252d",
            "bordercolor": "#20252d",
            "font": {"color": "#f3f4f6", "size": 12, "family": FONT},
            "align": "left",
            "namelength": -1,
        },
        legend={
            "orientation": "h",
            "x": 0,
            "xanchor": "left",
            "y": 1.0,
            "yanchor": "bottom",
            "font": {"size": 12},
        },
    )
    for row, text in enumerate(notes):
        drawn.add_annotation(
            name=NOTES,
            text=plain(text),
            xref="paper",
            yref="paper",
            x=0,
            y=0,
            xanchor="left",
            yanchor="top",
            yshift=-46 - 18 * row,
            showarrow=False,
            font={"size": 11, "color": INK},
            align="left",
        )
    return drawn


def empty(title: str, why: str) -> "go.Figure":
    """Return a figure that says why there is nothing to draw."""
    drawn = figure(title, "", height=220)
    drawn.update_xaxes(visible=False)
    drawn.update_yaxes(visible=False)
    drawn.add_annotation(
        text=plain(why), xref="paper", yref="paper", x=0.5, y=0.5, showarrow=False, font={"size": 14, "color": INK}
    )
    return drawn


def axis(title: str = "", **more: Any) -> dict[str, Any]:
    """Return an axis: a light grid, no frame, no zero line."""
    return {
        "title": {"text": plain(title), "font": {"size": 12}, "standoff": 8},
        "gridcolor": GRID,
        "zeroline": False,
        "showline": False,
        "ticks": "",
        "automargin": True,
        **more,
    }


def categories() -> dict[str, Any]:
    """Return a vertical axis of names, the first one at the top, a little away from their bars."""
    return axis(
        type="category",
        autorange="reversed",
        showgrid=False,
        ticks="outside",
        ticklen=6,
        tickcolor="rgba(0,0,0,0)",
    )


def faint(colour: str, share: float = 0.20) -> str:
    """Return a colour like `#0072B2` as one that lets through what is behind it."""
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red},{green},{blue},{share:.2f})"


def kept(count: int, limit: int) -> list[int]:
    """Return at most `limit` indices below `count`, evenly spread, the first and the last among them."""
    if count <= limit:
        return list(range(count))
    if limit < 2:
        return [0][:limit]
    return sorted({round(place * (count - 1) / (limit - 1)) for place in range(limit)})


def outline(values: Sequence[float], limit: int, always: Mapping[int, object] | set[int]) -> list[int]:
    """Return the indices of about `limit` values that keep the outline of a line.

    Of each of `limit / 2` stretches the lowest and the highest value stay, and so do the first value, the last
    and those in `always`.
    """
    count = len(values)
    if count <= limit:
        return list(range(count))
    stretches = max(1, limit // 2)
    chosen = {0, count - 1} | {index for index in range(count) if index in always}
    for stretch in range(stretches):
        inside = range(stretch * count // stretches, (stretch + 1) * count // stretches)
        chosen.add(min(inside, key=values.__getitem__))
        chosen.add(max(inside, key=values.__getitem__))
    return sorted(chosen)


def sensible_range(values: Sequence[float], *, maximize: bool) -> tuple[float, float] | None:
    """Return the range that shows nearly all values, if a few bad ones would flatten the rest; else None.

    The best value is always inside.
    """
    ordered = sorted(values)
    if len(ordered) < 20:
        return None
    low, high = ordered[len(ordered) // 50], ordered[-1 - len(ordered) // 50]
    if maximize:
        high = ordered[-1]
    else:
        low = ordered[0]
    span = high - low
    if span <= 0 or ordered[-1] - ordered[0] <= 3 * span:
        return None
    return low - 0.08 * span, high + 0.08 * span
