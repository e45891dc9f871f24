"""What mattered? The gain of trials against the change of their hyperparameters."""

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
"""Points of a panel; of more trials, an even selection is drawn."""
BINS = 6
"""Groups of changes that get an interval; up to this many distinct changes, each is a group."""
FEWEST = 6
"""Trials that an interval needs."""
USUAL = 10
"""Least number of trials at about the same progress whose median is the usual gain; at most 20 groups."""


@final
class Effect(NamedTuple):
    """The changes of one hyperparameter and the gains of the trials that made them.

    `changes` are log10 of factors, differences, or indices of new categories; `gains` are above the usual gain.
    """

    param: Hyperparameter
    changes: Any
    gains: Any


def gains_figure(data: StudyData) -> style.Figure:
    """Return a panel per hyperparameter: the gain in fitness, above the usual, after each change of it.

    A gain is the fitness of a trial minus that of the trial whose weights it started from. The usual gain is the
    median over trials of about that progress that changed any hyperparameter. A decision may change several.
    """
    title = "What mattered?"
    every = effects(data)
    if not every:
        return style.empty(title, "No trial with changed hyperparameters has completed with a finite fitness yet.")
    drawn = every[:PANELS]
    notes = [
        "Gain: fitness minus that of the parent, minus the median gain of changed trials at about that step.",
        "A dot is a trial; bars are medians with 95 % intervals. One decision may change several hyperparameters.",
    ]
    if len(drawn) < len(every):
        notes.append(f"{PANELS} of {len(every)} hyperparameters are shown: those that changed most often.")
    most = max(len(effect.changes) for effect in drawn)
    notes += [f"Dots: at most {POINTS} of up to {most:,} trials in a panel."] if most > POINTS else []
    figure, wheres = style.panels(title, _answer(every), [effect.param.name for effect in drawn], notes)
    for effect, where in zip(drawn, wheres, strict=True):
        panel, name = {"rows": where["row"], "cols": where["col"]}, plain(effect.param.name, 40)
        across = 10**effect.changes if effect.param.log else effect.changes
        dots = style.pick_evenly([*zip(across.tolist(), effect.gains.tolist(), strict=True)], POINTS)
        figure.add_traces(style.marks(dots, "", style.MUTED, 4), **panel)
        figure.add_hline(y=0, line={"color": style.INK, "width": 1}, **where)
        groups = [*_groups(effect)]
        above, below = [high - y for _, y, _, _, high in groups], [y - low for _, y, _, low, _ in groups]
        bars = {"error_y": {"type": "data", "array": above, "arrayminus": below, "color": style.WINNER}}
        rows = [group[:3] for group in groups]
        figure.add_traces(style.marks(rows, "median gain", style.WINNER, 8, meta=name, **bars), **panel)
        ends = [
            0.0,
            *np.quantile(effect.gains, [0.05, 0.95]).tolist(),
            *(end for group in groups for end in group[3:]),
        ]
        figure.update_yaxes(range=_padded(min(ends), max(ends)), nticks=5, tickformat="~g", **where)
        figure.update_xaxes(_axis(effect), **where)
    figure.update_layout(showlegend=False)
    figure.update_yaxes(title_text="gain", col=1)
    return figure


def effects(data: StudyData) -> list[Effect]:
    """Return the effect of each hyperparameter, the most often changed first."""
    trials, params = data.trials, data.trials.params
    gains = np.where(trials.parent >= 0, trials.fitness - trials.fitness[trials.parent], math.nan)
    gains *= 1 if data.aim.maximize else -1
    origins = trials.parent.tolist()
    changed = np.array([at >= 0 and params[at] is not own for at, own in zip(origins, params, strict=True)], bool)
    chosen = np.flatnonzero(changed & np.isfinite(gains))
    parts = min(20, max(1, len(chosen) // USUAL))
    for slots in np.array_split(chosen[np.argsort(trials.progress[chosen], kind="stable")], parts):
        gains[slots] -= np.median(gains[slots]) if len(slots) else 0.0
    after, before = ([params[at] for at in places.tolist()] for places in (chosen, trials.parent[chosen]))
    effects = []
    for param in data.hyperparameters:
        old, new = param.values(before), param.values(after)
        moved = (old != new) & np.isfinite(old) & np.isfinite(new)
        changes = new if param.is_choice else np.log10(new / old) if param.log else new - old
        if moved.any():
            effects.append(Effect(param, changes[moved], gains[chosen][moved]))
    return sorted(effects, key=lambda effect: -len(effect.changes))


def _groups(effect: Effect) -> Iterator[tuple[float, float, str, float, float]]:
    """Yield, for each group of changes, its median change and gain, a tooltip, and the gain's 95 % interval.

    The interval lies between two order statistics, so it holds for any distribution, even if some trials diverged.
    """
    places, which = np.unique(np.round(effect.changes, 6), return_inverse=True)
    if len(places) > BINS:
        # Groups of about equal size; raised and lowered values are separate.
        edges = np.quantile(effect.changes, np.linspace(0, 1, BINS)[1:-1])
        which = np.searchsorted(np.unique([*edges, 0.0]), effect.changes)
    for group in np.unique(which):
        gains, changes = np.sort(effect.gains[which == group]), effect.changes[which == group]
        changes = 10**changes if effect.param.log else changes
        if (count := len(gains)) >= FEWEST:
            middle, end = float(np.median(gains)), math.floor(count / 2 - 0.98 * math.sqrt(count))
            low, high = float(gains[end]), float(gains[count - 1 - end])
            lines = [
                _words(effect, changes),
                f"gain {number(middle, 3)}, 95 %: {number(low, 3)} to {number(high, 3)}",
            ]
            yield float(np.median(changes)), middle, "<br>".join([*lines, format_count(count, "trial")]), low, high


def _words(effect: Effect, changes: Any) -> str:
    """Return the changes of a group as text, as Plotly's HTML."""
    low, high = float(changes.min()), float(changes.max())
    if effect.param.is_choice:
        return f"to {plain(number((effect.param.categories or ())[int(low)]), 40)}"
    sign = "×" if effect.param.log else "+" if low > 0 else ""
    return f"{sign}{number(low, 3)}" + (f" to {sign}{number(high, 3)}" if high > low * (1 + 1e-6) else "")


def _axis(effect: Effect) -> dict[str, Any]:
    if effect.param.is_choice:
        names = [plain(number(value), 16) for value in effect.param.categories or ()]
        ends = -0.5, len(names) - 0.5
        return {"title_text": "changed to", "tickvals": [*range(len(names))], "ticktext": names, "range": ends}
    low, high = np.quantile(effect.changes, [0.03, 0.97]).tolist()
    ends = min(low, 0.0), max(high, 0.0)
    if effect.param.log:
        return {"title_text": "factor", "type": "log", "range": _padded(*ends), "nticks": 5}
    title, step = ("places up", 1) if effect.param.ordered and ends[1] - ends[0] < 8 else ("change", None)
    return {"title_text": title, "range": _padded(*ends), "nticks": 6, "dtick": step}


def _padded(low: float, high: float) -> tuple[float, float]:
    pad = 0.1 * (high - low) or 1e-9
    return low - pad, high + pad


def _answer(every: list[Effect]) -> str:
    """Return the directions of change whose gain is significant, adjusted for multiple tests.

    Method: Welch's t-test of the ranks of the gains; equal gains share their mean rank (Conover and Iman 1981).
    """
    directions = []
    for effect in (effect for effect in every if not effect.param.is_choice):
        # Like scipy.stats.rankdata, which takes a second to import.
        _, place, counts = np.unique(effect.gains, return_inverse=True, return_counts=True)
        ranks = (np.cumsum(counts) - (counts - 1) / 2)[place]
        up, down = ranks[effect.changes > 0], ranks[effect.changes < 0]
        if min(len(up), len(down)) >= FEWEST:
            first, second = (
                (sample.mean(), sample.std(ddof=1) / math.sqrt(len(sample)), len(sample)) for sample in (up, down)
            )
            direction = "raising" if up.mean() > down.mean() else "lowering"
            directions.append(
                (welch(first, second, alternative="two-sided"), f"{direction} {short(effect.param.name, 24)}")
            )
    adjusted = holm([p for p, _ in directions])
    clear = [words for p, (_, words) in sorted(zip(adjusted, directions, strict=True)) if p < 0.05]
    if not clear:
        return "No direction of change stands out beyond chance (p above 0.05, adjusted)"
    return f"More gain than chance gives after {', '.join(clear[:3])} (p below 0.05, adjusted)"
