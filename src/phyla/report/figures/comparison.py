"""Figures of compared studies: fitness over work, and differences of final values."""

import numpy as np

from phyla.formatting import format_count, number, score, short
from phyla.report import style
from phyla.report.compared import MOST_NEEDED, ComparedGroups, PairTest
from phyla.report.formatting import p_words, plain, time_unit

POINTS = 500
"""Points of a band; of more, an even selection is drawn."""
PAIRS = 30
"""How many differences are drawn."""


def curves_figure(comparison: ComparedGroups) -> style.Figure:
    """Return the median of every group over work, with a band between its quartiles."""
    unit, size = "steps of all members together", 1.0
    if comparison.by == "time":
        unit, size = time_unit(max(curve.last for group in comparison.groups for curve in group.curves))
        unit = f"time in which any job was running ({unit})"
    ranked = sorted(comparison.groups, key=lambda group: group.final.median, reverse=comparison.maximize)[:3]
    finals = ", ".join(f"{short(group.name, 24)} {score(group.final.median)}" for group in ranked)
    answer = f"{'Expected' if comparison.expected else 'At the end'}: {finals}"
    answer += f" and {len(comparison.groups) - 3} more" if len(comparison.groups) > 3 else ""
    notes = ["Line: median of the replicates' best so far; band: their quartiles; dotted: the target."]
    figure = style.figure("Which is better?", answer, height=520, notes=notes)
    values: list[float] = []
    for place, group in enumerate(comparison.groups):
        band, colour, name = group.band, style.series_colour(place), plain(group.name, 60)
        picked = style.pick_evenly([*zip(*band, strict=True)], POINTS)
        xs, low, middle, high = ([point[at] for point in picked] for at in range(4))
        xs = [x / size for x in xs]
        values += [*low, *high]
        if len(group.curves) > 1 and xs:
            # The corners of the step functions.
            across = np.repeat(xs, 2)[1:].tolist()
            down, up = (np.repeat(line, 2)[:-1].tolist() for line in (low, high))
            figure.add_traces(style.band(across, down, up, colour, legendgroup=group.name))
        rows = [
            (x, m, f"<b>{name}</b><br>median {score(m)}<br>quartiles {score(a)} to {score(b)}")
            for x, a, m, b in zip(xs, low, middle, high, strict=True)
        ]
        dash = ("solid", "dash", "dot")[place // len(style.PALETTE) % 3]
        label = f"{name} ({format_count(len(group.curves), 'replicate')})"
        mode = "lines" if len(xs) > 1 else "markers"
        look = {"mode": mode, "line_shape": "hv", "line_dash": dash, "legendgroup": group.name}
        figure.add_traces(style.line(rows, label, colour, 2.2, **look))
    figure.add_hline(y=comparison.target, line={"color": style.MUTED, "width": 1.2, "dash": "dot"})
    figure.update_layout(showlegend=True)
    figure.update_xaxes(title_text=unit, rangemode="tozero", tickformat="~s" if comparison.by == "steps" else None)
    # A log axis would compress the good end of a metric that is maximized.
    log = style.is_wide(values) and not comparison.maximize
    better = f"{plain(comparison.metric, 60)}, {'higher' if comparison.maximize else 'lower'} is better"
    figure.update_yaxes(title_text=better, type="log" if log else None)
    return figure


def differences_figure(comparison: ComparedGroups) -> style.Figure:
    """Return a row per pair of groups: the difference of means, its interval, and the replicates needed."""
    title = "Is the difference real?"
    tests = comparison.tests
    known = [(test, test.interval) for test in tests if test.interval is not None]
    if not known:
        return style.empty(
            title, "A test needs at least two replicates of each study. For six: phyla run FILE --replicates 6"
        )
    notes = ["In brackets: replicates of each that would make it significant in 80 of 100 cases."]
    notes += [f"The first {PAIRS} of {len(known)} pairs are drawn."] if len(known) > PAIRS else []
    known = known[:PAIRS]
    clear = [test for test in tests if test.is_significant]
    answer = (
        f"{len(clear)} of {format_count(len(tests), 'difference')} significant; bars: 95 % intervals of the means"
    )
    if len(tests) == 1:
        (test,) = tests
        sure = "Yes" if clear else "Inconclusive" if test.needed else "No difference"
        answer = f"{sure}: p {p_words(test.p)}"
        answer += (
            f"; {test.needed:,} seeds of each may suffice" if test.needed and test.needed <= MOST_NEEDED else ""
        )
    figure = style.figure(title, answer, height=190 + 44 * len(known), notes=notes)
    for significant, name, colour in ((True, "significant", style.WINNER), (False, "not significant", style.INK)):
        group = [(row, *pair) for row, pair in enumerate(known) if pair[0].is_significant is significant]
        rows = [(test.mean, row, _difference(test, interval)) for row, test, interval in group]
        wide = [high - test.mean for _, test, (_, high) in group]
        bars = {"error_x": {"type": "data", "array": wide, "color": colour, "thickness": 2}}
        figure.add_traces(style.marks(rows, name, colour, 10, **bars))
    figure.add_vline(x=0, line={"color": style.INK, "width": 1})
    figure.update_layout(showlegend=True)
    better = "right" if comparison.maximize else "left"
    figure.update_xaxes(title_text=f"difference of {plain(comparison.metric, 40)}; {better}: the first is better")
    needed = [f" ({format_count(test.needed, 'seed')})" if test.needed else "" for test, _ in known]
    names = [f"{test.first} minus {test.second}{more}" for (test, _), more in zip(known, needed, strict=True)]
    figure.update_yaxes(style.categories(names))
    return figure


def _difference(test: PairTest, interval: tuple[float, float]) -> str:
    lines = [
        f"{plain(test.first, 40)} minus {plain(test.second, 40)}: {number(test.mean)}",
        f"95 %: {number(interval[0])} to {number(interval[1])}",
        f"p {p_words(test.p)}, adjusted {p_words(test.p_holm)}; seeds needed: {test.row()['>seeds needed']}",
    ]
    return "<br>".join(lines)
