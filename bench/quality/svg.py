"""Figures as SVG: lines with bands, and dots with ranges. Enough for the docs, and the files are small."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 760, 380, 70, 40, 50
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
        color: as SVG names it; by default the next one of `COLORS`.
    """

    label: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    step: bool = False
    dotted: bool = False
    color: str = ""


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Numbers to pixels."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """Return the pixel of a value."""
        low, high = (math.log(self.low), math.log(self.high)) if self.log else (self.low, self.high)
        at = math.log(max(value, self.low)) if self.log else value
        return self.start + (self.end - self.start) * (at - low) / (high - low or 1.0)

    def ticks(self) -> list[float]:
        """Return round numbers within the range."""
        if self.log:
            powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            several = (1, 2, 5) if len(powers) < 4 else (1,)
            found = [factor * 10.0**power for power in powers for factor in several]
            return [value for value in found if self.low <= value <= self.high]
        rough = (self.high - self.low or 1.0) / 5
        unit = 10 ** math.floor(math.log10(rough))
        every = min((unit * f for f in (1, 2, 5, 10)), key=lambda one: abs(one - rough))
        first = math.ceil(self.low / every - 1e-9)
        return [every * k for k in range(first, math.floor(self.high / every + 1e-9) + 1)]


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
        within: least and greatest x, least and greatest y; None for all there is. What lies beyond must not be
            in the lines.
    """
    values = [value for line in drawn for value in (*line.y, *line.low, *line.high)]
    edge = 0.0 if log_y else 0.04 * (max(values) - min(values))
    left, right, low, high = within or (
        min(min(line.x) for line in drawn),
        max(max(line.x) for line in drawn),
        min(values) - edge,
        max(values) + edge,
    )
    across = Scale(low=left, high=right, start=LEFT, end=WIDTH - 220, log=log_x)
    up = Scale(low=low, high=high, start=HEIGHT - BOTTOM, end=TOP, log=log_y)
    body = _axes(across, up, x, y)
    for index, line in enumerate(drawn):
        color = line.color or COLORS[index % len(COLORS)]
        if line.low:
            path = _points(line.x, line.high, across, up) + _points(line.x, line.low, across, up)[::-1]
            body.append(f'<polygon points="{" ".join(path)}" fill="{color}" opacity="0.15"/>')
        path = _points(line.x, line.y, across, up, step=line.step)
        height = TOP + 10 + 20 * index
        if line.dotted:
            body.append(_marks(path, color))
            body.append(_marks([f"{WIDTH - 195},{height - 4}"], color))
        else:
            body.append(f'<polyline points="{" ".join(path)}" fill="none" stroke="{color}" stroke-width="2"/>')
            body.append(f'<path d="M{WIDTH - 205} {height - 4}h20" stroke="{color}" stroke-width="3"/>')
        body.append(_text(WIDTH - 180, height, line.label))
    return _page(title, body, HEIGHT)


def dots(title: str, rows: Sequence[tuple[str, float, float, float]], x: str, *, first: str = "") -> str:
    """Return a figure of medians with quartiles, one row each.

    Args:
        title: above it.
        rows: label, lower quartile, median, upper quartile; from above.
        x: what is to the right, with its unit.
        first: label of the row that a vertical line marks.
    """
    height = TOP + 24 * len(rows) + BOTTOM
    low, high = min(row[1] for row in rows), max(row[3] for row in rows)
    edge = 0.04 * (high - low)
    across = Scale(low=low - edge, high=high + edge, start=330, end=WIDTH - 20)
    body = _bottom(across, x, height - BOTTOM)
    for label, _, median, _ in rows:
        if label == first:
            at = across(median)
            body.append(f'<path d="M{at:.1f} {TOP}V{height - BOTTOM}" stroke="#999" stroke-dasharray="4 3"/>')
    for index, (label, below, median, above) in enumerate(rows):
        at = TOP + 14 + 24 * index
        body.append(_text(320, at + 4, label, anchor="end"))
        body.append(
            f'<path d="M{across(below):.1f} {at}H{across(above):.1f}" stroke="{COLORS[0]}" stroke-width="4" '
            'opacity="0.35"/>'
        )
        body.append(f'<circle cx="{across(median):.1f}" cy="{at}" r="5" fill="{COLORS[0]}"/>')
    return _page(title, body, height)


def _marks(points: Sequence[str], color: str) -> str:
    """Return round marks, as the caps of lines of no length: a third of the bytes of circles."""
    path = "".join(f"M{point}h0" for point in points)
    return f'<path d="{path}" stroke="{color}" stroke-width="4.5" stroke-linecap="round"/>'


def _points(x: Sequence[float], y: Sequence[float], across: Scale, up: Scale, *, step: bool = False) -> list[str]:
    found = []
    for index, (one, other) in enumerate(zip(x, y, strict=True)):
        if step and index:
            found.append(f"{across(one):.1f},{up(y[index - 1]):.1f}")
        found.append(f"{across(one):.1f},{up(other):.1f}")
    return found


def _axes(across: Scale, up: Scale, x: str, y: str) -> list[str]:
    body = _bottom(across, x, HEIGHT - BOTTOM)
    for tick in up.ticks():
        at = up(tick)
        body.append(f'<path d="M{LEFT} {at:.1f}H{across.end}" stroke="#e5e5e5"/>')
        body.append(_text(LEFT - 6, at + 4, f"{tick:g}", anchor="end"))
    body.append(
        f'<text transform="translate(16 {(TOP + HEIGHT - BOTTOM) / 2}) rotate(-90)" text-anchor="middle">'
        f"{escape(y)}</text>"
    )
    return body


def _bottom(across: Scale, x: str, at: float) -> list[str]:
    body = [f'<path d="M{across.start} {at}H{across.end}" stroke="#333"/>']
    for tick in across.ticks():
        body.append(f'<path d="M{across(tick):.1f} {at}v5" stroke="#333"/>')
        body.append(_text(across(tick), at + 18, f"{tick:g}", anchor="middle"))
    body.append(_text((across.start + across.end) / 2, at + 38, x, anchor="middle"))
    return body


def _text(x: float, y: float, text: str, *, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _page(title: str, body: Sequence[str], height: float) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    )
    style = 'font-family="sans-serif" font-size="12" fill="#222"'
    shown = [
        f"{head} {style}>",
        f"<title>{escape(title)}</title>",
        '<rect width="100%" height="100%" fill="#fff"/>',
    ]
    shown.append(f'<text x="{LEFT}" y="22" font-size="15">{escape(title)}</text>')
    return "\n".join([*shown, *body, "</svg>", ""])
