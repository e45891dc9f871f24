"""Figures as SVG, by Matplotlib: lines with bands, dots with ranges, and mean ranks."""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib

matplotlib.use("svg")
matplotlib.rcParams.update({
    "svg.fonttype": "none",
    "svg.hashsalt": "phyla",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e5e5e5",
    "legend.frameon": False,
})  # fmt: skip

from matplotlib.figure import Figure  # only once the settings are made

COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#7f7f7f", "#e69f00", "#56b4e9")


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line, with a band around it where `low` and `high` are given.

    Attributes:
        label: in the legend.
        x: from left to right.
        y: as many.
        low: lower edge of the band.
        high: its upper edge.
        step: whether each value holds until the next point.
        dotted: whether only its points are drawn.
        color: by default the next one of `COLORS`.
    """

    label: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    step: bool = False
    dotted: bool = False
    color: str = ""


def draw(axes: Any, drawn: Sequence[Line]) -> None:
    """Draw lines, with their bands and a legend."""
    for index, line in enumerate(drawn):
        color = line.color or COLORS[index % len(COLORS)]
        if line.low:
            axes.fill_between(line.x, line.low, line.high, color=color, alpha=0.15, linewidth=0)
        style: dict[str, Any] = {"marker": ".", "linestyle": "none"} if line.dotted else {"linewidth": 2}
        axes.plot(
            line.x, line.y, color=color, label=line.label, drawstyle="steps-post" if line.step else None, **style
        )


def lines(
    title: str,
    drawn: Sequence[Line],
    x: str,
    y: str,
    *,
    log_x: bool = False,
    log_y: bool = False,
    within: tuple[float, float, float, float] | None = None,
) -> str:
    """Return a figure of lines, and of points.

    Args:
        title: above it.
        drawn: the lines, in the order of the legend.
        x: what is to the right, with its unit.
        y: what is up, with its unit.
        log_x: whether the scale to the right is logarithmic.
        log_y: whether the one up is.
        within: least and greatest x, least and greatest y; None for all there is.
    """
    figure = Figure(figsize=(7.6, 3.8), layout="constrained")
    axes = figure.subplots()
    draw(axes, drawn)
    axes.set(
        title=title, xlabel=x, ylabel=y, xscale="log" if log_x else "linear", yscale="log" if log_y else "linear"
    )
    if within is not None:
        axes.axis(within)
    figure.legend(loc="outside right upper")
    return svg(figure)


def dots(title: str, rows: Sequence[tuple[str, float, float, float]], x: str, *, first: str = "") -> str:
    """Return a figure of medians with quartiles, one row each.

    Args:
        title: above it.
        rows: label, lower quartile, median, upper quartile; from above.
        x: what is to the right, with its unit.
        first: label of the row that a vertical line marks.
    """
    figure = Figure(figsize=(7.6, 1.1 + 0.26 * len(rows)), layout="constrained")
    axes = figure.subplots()
    for at, (label, low, median, high) in enumerate(rows):
        if label == first:
            axes.axvline(median, color="#999999", linestyle="--", linewidth=1)
        axes.plot([low, high], [at, at], color=COLORS[0], alpha=0.35, linewidth=4)
        axes.plot([median], [at], "o", color=COLORS[0])
    axes.set(title=title, xlabel=x, ylim=(len(rows) - 0.5, -0.5))
    axes.set_yticks(range(len(rows)), [label for label, *_ in rows])
    return svg(figure)


def ranks(title: str, means: Mapping[str, float], width: float) -> str:
    """Return mean ranks, best first; a line to the right joins those that the test does not tell apart.

    Args:
        title: above it.
        means: mean rank of each label.
        width: critical difference of two mean ranks.
    """
    ordered = sorted(means.items(), key=lambda pair: pair[1])
    values = [mean for _, mean in ordered]
    ends = [max(at for at, value in enumerate(values) if value - low < width) for low in values]
    groups = [(at, end) for at, end in enumerate(ends) if end > at and (at == 0 or ends[at - 1] < end)]
    figure = Figure(figsize=(7.6, 1.1 + 0.26 * len(ordered)), layout="constrained")
    axes = figure.subplots()
    axes.plot(values, range(len(values)), "o", color=COLORS[0])
    for number, (first, last) in enumerate(groups):
        x = max(values) + 0.6 + 0.35 * number
        axes.plot([x, x], [first - 0.3, last + 0.3], color=COLORS[4], linewidth=2)
    axes.plot([1.0, 1.0 + width], [-1.2, -1.2], color="#222222", linewidth=1.5, clip_on=False)
    axes.text(1.0 + width, -1.2, f"  critical difference {width:.1f}", va="center", fontsize=8)
    axes.set(title=title, xlabel="mean rank over tasks, 1 is best", ylim=(len(values) - 0.5, -1.9))
    axes.set_yticks(range(len(values)), [label for label, _ in ordered])
    return svg(figure)


def svg(figure: Figure) -> str:
    """Return a figure as SVG; the same figure always gives the same text."""
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None})
    return out.getvalue()
