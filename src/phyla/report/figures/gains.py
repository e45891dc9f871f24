"""What mattered? The gain of trials against the change that was made to their hyperparameters."""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple, final

import numpy as np

from phyla.formatting import format_count, number, short
from phyla.report import style
from phyla.report.data import Hyperparameter, StudyData
from phyla.report.formatting import plain
from phyla.significance import holm, welch

PANELS = 12
"""Hyperparameters that get a panel."""
POINTS = 250
"""Trials that get a point in a panel; beyond, an even selection."""
BINS = 6
"""Groups of changes that get an interval; of fewer different changes each is one."""
FEWEST = 6
"""Trials that an interval needs."""
USUAL = 10
"""Trials, of about the same progress, whose median gain is what was usual; or more, in 20 groups."""


@final
class Effect(NamedTuple):
    """What followed the changes of one hyperparameter.

    `changes` are logarithms of factors, differences, or places of what was chosen; `gains` are above the usual.
    """

    param: Hyperparameter
    changes: Any
    gains: Any


def gains_figure(data: StudyData) -> style.Figure:
    """Return a panel per hyperparameter: how much more than usual fitness rose after each change of it.

    A gain is the fitness of a trial less that of the trial whose weights it started from, and what is usual is the
    median over all trials at that progress that changed something. One decision may change several at once.
    """
    title = "What mattered?"
    every = effects(data)
    if not every:
        return style.empty(title, "No trial with changed hyperparameters has completed with a finite fitness yet.")
    shown = every[:PANELS]
    notes = [
        "Gain: fitness less that of the weights taken, less the median gain of changed trials at about that step.",
        "A dot is a trial; bars are medians with 95 % intervals. One decision may change several hyperparameters.",
    ]
    if len(shown) < len(every):
        notes.append(f"{PANELS} of {len(every)} hyperparameters are shown: those that changed most often.")
    most = max(len(one.changes) for one in shown)
    notes += [f"Dots: at most {POINTS} of up to {most:,} trials in a panel."] if most > POINTS else []
    figure, wheres = style.panels(title, _answer(every), [one.param.name for one in shown], notes)
    for one, where in zip(shown, wheres, strict=True):
        panel, name = {"rows": where["row"], "cols": where["col"]}, plain(one.param.name, 40)
        across = 10**one.changes if one.param.log else one.changes
        dots = style.kept([*zip(across.tolist(), one.gains.tolist(), strict=True)], POINTS)
        figure.add_traces(style.marks(dots, "", style.MUTED, 4), **panel)
        figure.add_hline(y=0, line={"color": style.INK, "width": 1}, **where)
        groups = [*_groups(one)]
        above, below = [high - y for _, y, _, _, high in groups], [y - low for _, y, _, low, _ in groups]
        bars = {"error_y": {"type": "data", "array": above, "arrayminus": below, "color": style.WINNER}}
        rows = [group[:3] for group in groups]
        figure.add_traces(style.marks(rows, "median gain", style.WINNER, 8, meta=name, **bars), **panel)
        ends = [
            0.0,
            *np.quantile(one.gains, [0.05, 0.95]).tolist(),
            *(end for group in groups for end in group[3:]),
        ]
        figure.update_yaxes(range=_padded(min(ends), max(ends)), nticks=5, tickformat="~g", **where)
        figure.update_xaxes(_axis(one), **where)
    figure.update_layout(showlegend=False)
    figure.update_yaxes(title_text="gain", col=1)
    return figure


def effects(data: StudyData) -> list[Effect]:
    """Return what followed the changes of every hyperparameter, the most often changed first."""
    trials, params = data.trials, data.trials.params
    gains = np.where(trials.parent >= 0, trials.fitness - trials.fitness[trials.parent], math.nan)
    gains *= 1 if data.aim.maximize else -1
    origins = trials.parent.tolist()
    changed = np.array([at >= 0 and params[at] is not own for at, own in zip(origins, params, strict=True)], bool)
    chosen = np.flatnonzero(changed & np.isfinite(gains))
    parts = min(20, max(1, len(chosen) // USUAL))
    for its in np.array_split(chosen[np.argsort(trials.progress[chosen], kind="stable")], parts):
        gains[its] -= np.median(gains[its]) if len(its) else 0.0
    after, before = ([params[at] for at in places.tolist()] for places in (chosen, trials.parent[chosen]))
    found = []
    for param in data.hyperparameters:
        old, new = param.values(before), param.values(after)
        moved = (old != new) & np.isfinite(old) & np.isfinite(new)
        changes = new if param.is_choice else np.log10(new / old) if param.log else new - old
        if moved.any():
            found.append(Effect(param, changes[moved], gains[chosen][moved]))
    return sorted(found, key=lambda one: -len(one.changes))


def _groups(one: Effect) -> Iterator[tuple[float, float, str, float, float]]:
    """Yield the median gain of each group of changes: where, how much, in words, and its 95 % interval.

    The interval is between two of the gains in order: it holds for any distribution, also where a few diverged.
    """
    places, which = np.unique(np.round(one.changes, 6), return_inverse=True)
    if len(places) > BINS:
        # Groups of about one size, raised and lowered apart.
        edges = np.quantile(one.changes, np.linspace(0, 1, BINS)[1:-1])
        which = np.searchsorted(np.unique([*edges, 0.0]), one.changes)
    for group in np.unique(which):
        gains, changes = np.sort(one.gains[which == group]), one.changes[which == group]
        changes = 10**changes if one.param.log else changes
        if (count := len(gains)) >= FEWEST:
            middle, end = float(np.median(gains)), math.floor(count / 2 - 0.98 * math.sqrt(count))
            low, high = float(gains[end]), float(gains[count - 1 - end])
            lines = [
                _words(one, changes),
                f"gain {number(middle, 3)}, 95 %: {number(low, 3)} to {number(high, 3)}",
            ]
            yield float(np.median(changes)), middle, "<br>".join([*lines, format_count(count, "trial")]), low, high


def _words(one: Effect, changes: Any) -> str:
    """Return the changes of a group in words, as Plotly's HTML."""
    low, high = float(changes.min()), float(changes.max())
    if one.param.is_choice:
        return f"to {plain(number((one.param.categories or ())[int(low)]), 40)}"
    sign = "×" if one.param.log else "+" if low > 0 else ""
    return f"{sign}{number(low, 3)}" + (f" to {sign}{number(high, 3)}" if high > low * (1 + 1e-6) else "")


def _axis(one: Effect) -> dict[str, Any]:
    if one.param.is_choice:
        names = [plain(number(value), 16) for value in one.param.categories or ()]
        ends = -0.5, len(names) - 0.5
        return {"title_text": "changed to", "tickvals": [*range(len(names))], "ticktext": names, "range": ends}
    low, high = np.quantile(one.changes, [0.03, 0.97]).tolist()
    ends = min(low, 0.0), max(high, 0.0)
    if one.param.log:
        return {"title_text": "factor", "type": "log", "range": _padded(*ends), "nticks": 5}
    what, step = ("places up", 1) if one.param.ordered and ends[1] - ends[0] < 8 else ("change", None)
    return {"title_text": what, "range": _padded(*ends), "nticks": 6, "dtick": step}


def _padded(low: float, high: float) -> tuple[float, float]:
    pad = 0.1 * (high - low) or 1e-9
    return low - pad, high + pad


def _answer(every: list[Effect]) -> str:
    """Return which directions were followed by more gain than chance gives, adjusted for how many were compared.

    Method: Welch's t-test of the ranks of the gains (Conover and Iman 1981).
    """
    found = []
    for one in (one for one in every if not one.param.is_choice):
        ranks = np.argsort(np.argsort(one.gains)).astype(float)
        up, down = ranks[one.changes > 0], ranks[one.changes < 0]
        if min(len(up), len(down)) >= FEWEST:
            first, second = ((one.mean(), one.std(ddof=1) / math.sqrt(len(one)), len(one)) for one in (up, down))
            direction = "raising" if up.mean() > down.mean() else "lowering"
            found.append(
                (welch(first, second, alternative="two-sided"), f"{direction} {short(one.param.name, 24)}")
            )
    adjusted = holm([p for p, _ in found])
    clear = [words for p, (_, words) in sorted(zip(adjusted, found, strict=True)) if p < 0.05]
    if not clear:
        return "No direction of change stands out beyond chance (p above 0.05, adjusted)"
    return f"More gain than chance gives after {', '.join(clear[:3])} (p below 0.05, adjusted)"
