"""Which hyperparameters went with progress."""

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import final

from phyla.records import Json, TrialRecord
from phyla.report.data import StudyData, finite_fitness
from phyla.report.schedules import panels_of, same
from phyla.significance import midranks

FEWEST = 10
"""Trials below which nothing is said."""
NORMAL_95 = 1.96
"""Standard deviations within which 95 of 100 normal values lie."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivity:
    """How much a trial's gain went with one of its hyperparameters.

    Attributes:
        name: flat name of the hyperparameter.
        ordered: whether its values have an order: then `strength` is a rank correlation in [-1, 1], else a
            share in [0, 1] that says nothing about a direction.
        strength: 0 for none; None with fewer than `FEWEST` trials, or where it never varied.
        noise: what `strength` stays below by chance in 95 of 100 cases, were there none.
        trials: how many trials it was taken from: those of generations in which it varied.
        gains: of one without an order, the median gain of the trials of every value.
    """

    name: str
    ordered: bool
    strength: float | None
    noise: float
    trials: int
    gains: Mapping[str, float]


def sensitivities(studies: Sequence[StudyData]) -> list[Sensitivity]:
    """Return how much the gain of a trial went with each hyperparameter, over replicates of one study.

    The gain of a trial is its fitness less that of the trial it started from, so that more is better. Early trials
    gain more and have other hyperparameters than late ones, so both are ranked among the trials of the same
    generation of the same study, as a share in (0, 1), before they are compared:

    - numbers and ordered choices by the correlation of these ranks, Spearman's within generations;
    - other choices by the square root of epsilon squared (Kelley 1935) of the ranks of gains by value: the share
      of their variance between values, less what chance would give.

    It says what went together, not what caused what: an exploit changes all hyperparameters at once.

    Args:
        studies: replicates of one study.
    """
    by_generation: dict[tuple[int, int], list[tuple[TrialRecord, float]]] = defaultdict(list)
    for number, data in enumerate(studies):
        for trial, gain in _gains(data):
            by_generation[number, trial.generation].append((trial, gain))
    found: list[Sensitivity] = []
    for panel in panels_of(studies[0]) if studies else ():
        groups = [
            [(trial.params[panel.name], gain) for trial, gain in group if panel.name in trial.params]
            for group in by_generation.values()
        ]
        if panel.categories is None or panel.ordered:
            found.append(_ordered(panel.name, [_placed(group, panel.categories) for group in groups]))
        else:
            found.append(_unordered(panel.name, groups))
    return found


def _gains(data: StudyData) -> Iterable[tuple[TrialRecord, float]]:
    sign = 1.0 if data.maximize else -1.0
    for trial in data.lineage:
        parent = data.lineage.parent(trial.id)
        before = None if parent is None else finite_fitness(parent)
        after = finite_fitness(trial)
        if before is not None and after is not None:
            yield trial, sign * (after - before)


def _placed(group: Sequence[tuple[Json, float]], places: Sequence[Json] | None) -> list[tuple[float, float]]:
    """Return values as numbers: what they are, or their place among the ordered choices."""
    placed: list[tuple[float, float]] = []
    for value, gain in group:
        if places is not None:
            at = [index for index, known in enumerate(places) if same(known, value)]
            placed += [(float(at[0]), gain)] if at else []
        elif isinstance(value, (int, float)) and math.isfinite(value):
            placed.append((float(value), gain))
    return placed


def _shares(values: Sequence[float]) -> list[float]:
    """Return ranks as shares, less one half: symmetric about 0 for any number of values."""
    return [(rank - 0.5) / len(values) - 0.5 for rank in midranks(values)]


def _ordered(name: str, groups: Iterable[Sequence[tuple[float, float]]]) -> Sensitivity:
    trials, together, chance = 0, 0.0, 0.0
    spread_of_values, spread_of_gains = 0.0, 0.0
    for group in groups:
        values, gains = [value for value, _ in group], [gain for _, gain in group]
        # Where one of them is the same all over, the generation says nothing.
        if len(set(values)) < 2 or len(set(gains)) < 2:
            continue
        xs, ys = _shares(values), _shares(gains)
        x, y = math.fsum(x * x for x in xs), math.fsum(y * y for y in ys)
        trials += len(group)
        together += math.fsum(x * y for x, y in zip(xs, ys, strict=True))
        spread_of_values += x
        spread_of_gains += y
        # The variance of the sum if the gains of a generation were dealt out at random.
        chance += x * y / (len(group) - 1)
    enough = trials >= FEWEST
    spread = math.sqrt(spread_of_values * spread_of_gains)
    return Sensitivity(
        name=name,
        ordered=True,
        strength=together / spread if enough else None,
        noise=min(1.0, NORMAL_95 * math.sqrt(chance) / spread) if enough else 1.0,
        trials=trials,
        gains={},
    )


def _unordered(name: str, groups: Iterable[Sequence[tuple[Json, float]]]) -> Sensitivity:
    gains: dict[str, list[float]] = defaultdict(list)
    ranks: dict[str, list[float]] = defaultdict(list)
    freedom = 0
    for group in groups:
        labels, its = [str(value) for value, _ in group], [gain for _, gain in group]
        for label, gain in zip(labels, its, strict=True):
            gains[label].append(gain)
        if len(set(labels)) > 1 and len(set(its)) > 1:
            freedom += len(its) - 1
            for label, rank in zip(labels, _shares(its), strict=True):
                ranks[label].append(rank)
    trials, between_freedom = sum(map(len, ranks.values())), len(ranks) - 1
    strength, noise = None, 1.0
    if trials >= FEWEST and 0 < between_freedom < freedom:
        from scipy.special import chdtri

        total = math.fsum(rank * rank for one in ranks.values() for rank in one)
        between = math.fsum(math.fsum(one) ** 2 / len(one) for one in ranks.values())
        within_share = (1 - between / total) * freedom / (freedom - between_freedom)
        strength = math.sqrt(max(0.0, 1 - within_share))
        above_chance = float(chdtri(between_freedom, 0.05)) - between_freedom
        noise = math.sqrt(min(1.0, above_chance / freedom))
    return Sensitivity(
        name=name,
        ordered=False,
        strength=strength,
        noise=noise,
        trials=trials,
        gains={label: statistics.median(one) for label, one in sorted(gains.items())},
    )
