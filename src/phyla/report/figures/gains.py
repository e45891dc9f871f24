"""What mattered? The gain of trials against the change that was made to their hyperparameters."""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple, final

import numpy as np

from phyla.report import style
from phyla.report.data import Hyperparameter, StudyData
from phyla.report.words import plain, short
from phyla.significance import holm, welch
from phyla.words import counted, number

PANELS = 12
"""Hyperparameters that get a panel."""
POINTS = 250
"""Trials that get a point in a panel; beyond, an even selection."""
BINS = 6
"""Groups of changes that get an interval; of fewer different changes each is one."""
FEWEST = 4
"""Trials that an interval needs."""
USUAL = 20
"""Stretches of progress; a gain is compared with those of the same one."""


@final
class Effect(NamedTuple):
    """What followed the changes of one hyperparameter.

    `changes` are factors, differences or, of choices, places of what was chosen; `gains` are above what was usual.
    """

    param: Hyperparameter
    changes: Any
    gains: Any

    @property
    def neutral(self) -> float:
        """The change that changes nothing."""
        return 1.0 if self.param.log else 0.0

    def up_and_down(self) -> tuple[Any, Any] | None:
        """Return the gains after values were raised, and after they were lowered; None if they have no order."""
        if self.param.categories is not None and not self.param.ordered:
            return None
        parts = self.gains[self.changes > self.neutral], self.gains[self.changes < self.neutral]
        return parts if min(map(len, parts)) >= FEWEST else None


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
        "Gain: fitness less that of the weights taken, less the median gain of changed trials at that progress.",
        "A dot is a trial; bars are means with 95 % intervals. One decision may change several hyperparameters.",
    ]
    if len(shown) < len(every):
        notes.append(f"{PANELS} of {len(every)} hyperparameters are shown: those that changed most often.")
    most = max(len(one.changes) for one in shown)
    notes += [f"Dots: at most {POINTS} of up to {most:,} trials in a panel."] if most > POINTS else []
    figure, wheres = style.panels(title, _answer(data, every), [one.param.name for one in shown], notes)
    for one, where in zip(shown, wheres, strict=True):
        panel, name = {"rows": where["row"], "cols": where["col"]}, plain(one.param.name, 40)
        dots = style.kept([*zip(one.changes.tolist(), one.gains.tolist(), strict=True)], POINTS)
        figure.add_traces(style.marks(dots, "", style.MUTED, 4), **panel)
        figure.add_hline(y=0, line={"color": style.INK, "width": 1}, **where)
        means = [*_means(one)]
        bars = {"error_y": {"type": "data", "array": [wide for *_, wide in means], "color": style.WINNER}}
        rows = [(x, y, words) for x, y, words, _ in means]
        figure.add_traces(style.marks(rows, "mean gain", style.WINNER, 8, meta=name, **bars), **panel)
        low, high = np.quantile(one.gains, [0.02, 0.98]).tolist()
        ends = [0.0, low, high, *(end for _, y, _, wide in means for end in (y - wide, y + wide))]
        figure.update_yaxes(range=_padded(min(ends), max(ends)), nticks=5, tickformat="~g", **where)
        figure.update_xaxes(_axis(one), **where)
    figure.update_layout(showlegend=False)
    figure.update_yaxes(title_text="gain", col=1)
    return figure


def effects(data: StudyData) -> list[Effect]:
    """Return what followed the changes of every hyperparameter, the most often changed first."""
    columns, trials = data.columns, data.completed
    started = columns.parent >= 0
    gains = np.where(started, columns.fitness - columns.fitness[columns.parent], math.nan)
    gains *= 1 if data.aim.maximize else -1
    changed = np.array(
        [at >= 0 and trials[at].params != one.params for at, one in zip(columns.parent, trials, strict=True)],
        dtype=bool,
    )
    fit = changed & np.isfinite(gains)
    chosen, stretch = np.flatnonzero(fit), USUAL * columns.progress // (columns.progress.max(initial=0) + 1)
    for part in np.unique(stretch[fit]):
        its = fit & (stretch == part)
        gains[its] -= np.median(gains[its])
    after = [trials[at] for at in chosen]
    before = [trials[at] for at in columns.parent[chosen]]
    found = []
    for param in data.hyperparameters:
        old, new = param.values(before), param.values(after)
        moved = (old != new) & np.isfinite(old) & np.isfinite(new)
        changes = new / old if param.log else new - old
        if param.categories is not None and not param.ordered:
            changes = new
        if moved.any():
            found.append(Effect(param, changes[moved], gains[chosen][moved]))
    return sorted(found, key=lambda one: -len(one.changes))


def _means(one: Effect) -> Iterator[tuple[float, float, str, float]]:
    """Yield the mean gain of each group of changes: where, how much, in words, and half of its 95 % interval."""
    from scipy.special import stdtrit

    places, which = np.unique(np.round(one.changes, 6), return_inverse=True)
    if len(places) > BINS:
        # Groups of one size, raised and lowered apart.
        edges = np.quantile(one.changes, np.linspace(0, 1, BINS)[1:-1])
        which = np.searchsorted(np.unique([*edges, one.neutral]), one.changes)
    for group in np.unique(which):
        gains, changes = one.gains[which == group], one.changes[which == group]
        if len(gains) >= FEWEST:
            mean = float(gains.mean())
            wide = float(stdtrit(len(gains) - 1, 0.975)) * float(gains.std(ddof=1)) / math.sqrt(len(gains))
            words = f"{_words(one, changes)}<br>gain {number(mean, 3)} ± {number(wide, 2)}"
            words += f"<br>{counted(len(gains), 'trial')}"
            yield float(np.median(changes)), mean, words, wide


def _words(one: Effect, changes: Any) -> str:
    """Return the changes of a group in words, as Plotly's HTML."""
    low, high = float(changes.min()), float(changes.max())
    if one.param.categories is not None and not one.param.ordered:
        return f"to {plain(number(one.param.categories[int(low)]), 40)}"
    sign = "×" if one.param.log else "+" if low > 0 else ""
    return f"{sign}{number(low, 3)}" + (f" to {sign}{number(high, 3)}" if high > low * (1 + 1e-6) else "")


def _axis(one: Effect) -> dict[str, Any]:
    if one.param.categories is not None and not one.param.ordered:
        names = [plain(number(value), 16) for value in one.param.categories]
        places: dict[str, Any] = {
            "tickvals": [*range(len(names))],
            "ticktext": names,
            "range": [-0.5, len(names) - 0.5],
        }
        return {"title_text": "changed to", **places}
    low, high = np.quantile(one.changes, [0.03, 0.97]).tolist()
    ends = min(low, one.neutral), max(high, one.neutral)
    if one.param.log:
        low, high = math.log10(ends[0]), math.log10(ends[1])
        return {"title_text": "factor", "type": "log", "range": _padded(low, high), "tickprefix": "×", "nticks": 5}
    what, step = ("places up", 1) if one.param.ordered and ends[1] - ends[0] < 8 else ("change", None)
    return {"title_text": what, "range": _padded(*ends), "nticks": 6, "dtick": step}


def _padded(low: float, high: float) -> tuple[float, float]:
    pad = 0.1 * (high - low) or 1e-9
    return low - pad, high + pad


def _answer(data: StudyData, every: list[Effect]) -> str:
    """Return which changes were followed by more than chance gives, adjusted for how many were compared."""
    compared = [(one, parts) for one in every if (parts := one.up_and_down())]
    tests = [
        welch(
            *((float(g.mean()), float(g.std(ddof=1)) / math.sqrt(len(g)), len(g)) for g in parts),
            alternative="two-sided",
        )
        for _, parts in compared
    ]
    clear = [
        (p, f"{'raising' if up.mean() > down.mean() else 'lowering'} {short(one.param.name, 24)}")
        for p, (one, (up, down)) in zip(holm(tests), compared, strict=True)
        if p < 0.05
    ]
    if not clear:
        return "No direction of change stands out beyond chance (p above 0.05, adjusted)"
    words = ", ".join(words for _, words in sorted(clear)[:3])
    return f"More gain than chance gives after {words} (p below 0.05, adjusted)"
