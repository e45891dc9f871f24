"""The figure of published curves: apart from their tables, which tests read without Matplotlib."""

from collections.abc import Sequence
from typing import Any

from drawing import COLORS, Line, draw, svg
from matplotlib.figure import Figure

POINTS = 40
"""Of a curve in the figure."""


def figure(document: dict[str, Any]) -> str:
    """Return six small panels."""
    found = document["experiments"]
    drawing = Figure(figsize=(10.5, 6.6), layout="constrained")
    toy, policy, game, sizes, longer, rates = drawing.subplots(2, 3).flat
    _draw_traces(toy, found["toy"]["traces"])
    for axes, name, title in (
        (policy, "policy", "A policy: expected reward"),
        (game, "game", "Two players: log10 of the squared distance"),
        (sizes, "sizes", "Letters: loss"),
        (longer, "longer", "Long runs on the noisy quadratic: loss"),
    ):
        draw(axes, [_line(label, curve) for label, curve in found[name]["curves"].items()])
        axes.set_title(title, fontsize=10)
        axes.legend(fontsize=6)
    longer.set(xscale="log", yscale="log")
    longer.tick_params(axis="x", which="minor", labelbottom=False)
    sizes.set(ylim=(0.05, 0.3))
    followed = [("policy", "lr"), ("policy", "entropy"), ("game", "descent"), ("game", "ascent")]
    paths = {f"{name}: {rate}": found[name]["schedules"]["PBT"][rate] for name, rate in followed}
    draw(rates, [_relative(label, path) for label, path in paths.items()])
    rates.set(yscale="log", xlabel="share of the training")
    for axes in (policy, game, sizes, longer):
        axes.set_xlabel("steps of all members" if axes is sizes else "steps of a member")
    rates.set_title("Rates that PBT found, relative to the first", fontsize=10)
    rates.legend(fontsize=6)
    return svg(drawing)


def _line(label: str, curve: dict[str, Sequence[float]]) -> Line:
    """Return a curve with few of its points, the last among them."""
    step = -(-len(curve["steps"]) // POINTS)
    x, y, low, high = (curve[name][::-1][::step][::-1] for name in ("steps", "median", "low", "high"))
    return Line(label=label, x=x, y=y, low=low, high=high)


def _relative(label: str, path: Sequence[float]) -> Line:
    x = [place / (len(path) - 1) for place in range(len(path))]
    return Line(label=label, x=x, y=[value / path[0] for value in path], step=True)


def _draw_traces(axes: Any, traces: dict[str, Any]) -> None:
    """Draw the weights of both members of the first seed."""
    for color, (label, steps) in zip(COLORS, traces.items(), strict=False):
        for member in range(2):
            x, y = ([weights[member][axis] for weights in steps] for axis in range(2))
            draw(axes, [Line(label="" if member else label, x=x, y=y, color=color)])
    axes.set_title("Toy of figure 2: weights of two members", fontsize=10)
    axes.legend(fontsize=6)
