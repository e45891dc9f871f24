"""How good a checkpoint is, where scores are noisy: a local level model on the tree of trials.

Of many noisy scores the best is a lucky one. But weights change little within one trial, so the scores of its
parent, siblings and children say something about a checkpoint, too. The model, with scores as sort keys:

    score = level + noise                     noise ~ N(0, r), the same for all trials
    level = level of the parent + drift + change         change ~ t, scale q

Drift and q belong to all trials of one depth, the number of trials before them on their lineage, and neither grows
with depth: training improves ever more slowly, and may get worse. Changes have a t-distribution with `FREEDOM`
degrees of freedom, as members have different learning rates, so that one that leaps says little about the others.
r, q and drift are those of maximum likelihood, by the EM algorithm; selection by score does not bias them, as the
model has all scores that were selected by. Levels follow in two passes over the tree.

Real changes must not be taken for noise: scores are taken as they are where r < q at the greatest depth, and where
they change far less there than the noise would make them. If r is not far below q, they may be noisy nevertheless.
Scores alone cannot distinguish noise from weights that oscillate around one level.

Sources: Harvey 1989, Forecasting, structural time series models and the Kalman filter (local level); Chou,
Willsky and Benveniste 1994, Multiscale recursive estimation, data fusion, and regularization (two passes over a
tree); Shumway and Stoffer 1982, An approach to time series smoothing and forecasting using the EM algorithm;
Lange, Little and Taylor 1989, Robust statistical modeling using the t distribution (weights); Barlow et al.
1972, Statistical inference under order restrictions (pooled neighbours); Dunn 1961, Multiple comparisons among
means (t-intervals of several); Rubin 1976, Inference and missing data (selection).
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, final

import numpy as np
import numpy.typing as npt

from phyla.records import Member, Score, Scored
from phyla.strategies.final import Expected

Array: TypeAlias = npt.NDArray[np.float64]

FREEDOM = 3
"""Degrees of freedom of changes: the fewest with which they have a variance."""

DIVERGED = 10
"""A score is left out if it is this many times as far behind the median of its depth as the best is ahead of it.

Of 16 normal scores the best is 1.8 standard deviations ahead on average, and hardly ever less than half of one.
"""

ENOUGH = 20
"""Trials with a grandparent that it takes: noise is what parent and child share with opposite signs.

From 20 of them alone its standard deviation is known to about 30 %.
"""

ROUNDING = 1e-15
"""Part of a number that is lost in a sum."""

UNLIKELY = 4
"""Noise is not the same for all trials if it is this many times as large as the median of the newest changes.

The median of changes that are nothing but noise is 0.95 standard deviations; that of `ENOUGH` is hardly ever a
quarter of one. Where losses fall by orders of magnitude, even rounding is more than the newest changes.
"""

UNCLEAR = 0.3
"""Scores that are taken as they are may be noisy if r is more than this part of q at the greatest depth.

Of 100 simulated studies of 64 trials that are nothing but noise, 27 are taken as they are, and 14 of these are
unclear; of 100 with exact scores, 5 are.
"""

ITERATIONS = 60
"""Rounds of EM. Five times as many raise the estimated noise by 6 % in the median."""

SIGNIFICANT = 1.96
"""Standard errors of a significant difference (5 %)."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Estimates:
    """Estimates of trials, by place; sort keys, so higher is better.

    Attributes:
        levels: what each trial's score would be without noise; minus infinity where there is nothing to go by.
        stderrs: the standard error of each.
        noise: standard deviation of the noise of one score; nan if there are too few trials to tell.
        exact: whether scores are taken as they are, and are the levels.
        unclear: whether there are too few trials to tell if scores are exact.
    """

    levels: Array
    stderrs: Array
    noise: float
    exact: bool
    unclear: bool = False

    @property
    def known_noise(self) -> float | None:
        """The noise; None if there are too few trials to tell."""
        return None if math.isnan(self.noise) else self.noise

    def expected(self, place: int, *, members: int, maximize: bool) -> Expected | None:
        """Return the estimated fitness of a trial with its 95 % interval; None where scores are exact.

        The estimate of the best of several members is usually too good, so the interval is wide enough to hold for
        all of them at once. Few members leave the variances uncertain, so it is a t-interval with `members` - 1
        degrees of freedom.
        """
        if self.exact:
            return None
        from scipy.special import stdtrit

        wide = float(stdtrit(max(1, members - 1), 1 - 0.025 / max(1, members))) * float(self.stderrs[place])
        level = float(self.levels[place])
        value = level if maximize else -level
        return Expected(value=value, low=value - wide, high=value + wide)

    def winner(self, heads: Collection[int], luckiest: int) -> int:
        """Return the place of the best trial, the earliest among equals.

        It is the best of `heads`, the newest trials of all members, unless the trial with the best score,
        `luckiest`, is better: significantly (5 %), unless scores are exact. It is the luckiest of many more
        trials, and weights that trained longer are usually better. So a newest trial wins where both are equal,
        as where a return has a maximum that many trials reach.
        """
        if not heads:
            return luckiest
        newest = min(heads, key=self._rank)
        if self.exact:
            return luckiest if self.levels[luckiest] > self.levels[newest] else newest
        ahead = self.levels[luckiest] - self.levels[newest]
        significant = ahead > SIGNIFICANT * np.hypot(self.stderrs[luckiest], self.stderrs[newest])
        return luckiest if significant else newest

    def lead(self, place: int, heads: Collection[int]) -> float | None:
        """Return by how much a trial is better than the best other one of `heads`; None without another."""
        others = [float(self.levels[head]) for head in heads if head != place]
        return float(self.levels[place]) - max(others) if others else None

    def candidates(self, heads: Collection[int], luckiest: int, count: int) -> list[int]:
        """Return the candidates of a final, at most `count`, the best by estimate first.

        They are the trial with the best score, and the best of `heads` by estimate: other trials with good scores
        are usually lucky.
        """
        ranked = sorted(set(heads) - {luckiest}, key=self._rank)
        return sorted([luckiest, *ranked][:count], key=self._rank)

    def _rank(self, place: int) -> tuple[float, int]:
        return -float(self.levels[place]), place


def by_estimate(population: Sequence[Member], scores: Sequence[Score], generation: int) -> list[Member]:
    """Return members with estimates as the sort keys of what they published, from scores before a generation."""
    known = [score for score in scores if score.generation < generation]
    estimates, places = estimate_scores(known)
    if estimates.exact:
        return list(population)

    def estimated(state: Scored | None) -> Scored | None:
        place = None if state is None else places.get(state.trial)
        if state is None or place is None or state.order is None:
            return state
        return replace(state, order=float(estimates.levels[place]))

    return [
        replace(
            member,
            head=estimated(member.head),
            best=estimated(member.best),
            states=tuple(state for state in map(estimated, member.states) if state is not None),
        )
        for member in population
    ]


def estimate_scores(scores: Sequence[Score]) -> tuple[Estimates, dict[int, int]]:
    """Return the estimates of trials, and the place of each among them by its id."""
    places = {score.trial: place for place, score in enumerate(scores)}
    parents = [None if score.parent is None else places.get(score.parent) for score in scores]
    return estimate([score.order for score in scores], parents), places


def estimate(orders: Sequence[float], parents: Sequence[int | None]) -> Estimates:
    """Return the estimates of the trials of a study, by place.

    Args:
        orders: the sort key of each trial's score, higher is better; not finite where there is none.
        parents: the place of the trial whose weights each started from, which is before it; None for fresh ones.
    """
    raw = np.where(np.isfinite(orders), orders, -np.inf)
    tree = _Tree.of(parents)
    if len(tree.starts) < 3 or len(raw) - tree.starts[2] < ENOUGH:
        return _as_they_are(raw, np.nan, unclear=True)
    scores = _without_diverged(raw[tree.sequence], tree)
    changes = np.abs(scores - scores[tree.parents])[tree.starts[1] :]
    known = changes[~np.isnan(changes)]
    if len(known) < ENOUGH:
        return _as_they_are(raw, np.nan, unclear=True)
    scale, center = float(np.median(known)), float(np.nanmedian(scores))
    newest = float(np.median(known[-ENOUGH:]))
    if min(scale, newest) <= ROUNDING * np.nanmax(np.abs(scores - center)):
        return _as_they_are(raw, 0.0)
    fit = _fit((scores - center) / scale, tree)
    noise = scale * math.sqrt(fit.noise)
    if noise > UNLIKELY * newest:
        return _as_they_are(raw, np.nan)
    if fit.noise < fit.change[-1]:
        return _as_they_are(raw, noise, unclear=fit.noise > UNCLEAR * fit.change[-1])
    levels, stderrs = np.empty(len(raw)), np.empty(len(raw))
    levels[tree.sequence] = np.where(np.isnan(scores), -np.inf, center + scale * fit.levels)
    stderrs[tree.sequence] = scale * np.sqrt(fit.variances)
    return Estimates(levels=levels, stderrs=stderrs, noise=noise, exact=False)


def _as_they_are(orders: Array, noise: float, *, unclear: bool = False) -> Estimates:
    return Estimates(levels=orders, stderrs=np.full(len(orders), noise), noise=noise, exact=True, unclear=unclear)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tree:
    """Trials in the order of their depth.

    Attributes:
        sequence: places of the trials, by depth.
        parents: where in the sequence the parent of each is; of those of depth 0, anywhere.
        starts: where in the sequence each depth begins.
        sizes: how many trials there are of each depth.
    """

    sequence: npt.NDArray[np.intp]
    parents: npt.NDArray[np.intp]
    starts: npt.NDArray[np.intp]
    sizes: npt.NDArray[np.intp]

    @classmethod
    def of(cls, parents: Sequence[int | None]) -> "_Tree":
        depths: list[int] = []
        for parent in parents:
            depths.append(0 if parent is None else depths[parent] + 1)
        sequence = np.argsort(depths, kind="stable")
        place = np.empty_like(sequence)
        place[sequence] = np.arange(len(sequence))
        above = np.array([0 if parent is None else parent for parent in parents], np.intp)
        sizes = np.bincount(depths) if depths else np.zeros(0, np.intp)
        return cls(sequence=sequence, parents=place[above[sequence]], starts=np.cumsum(sizes) - sizes, sizes=sizes)

    def depths(self) -> list[slice]:
        """Return where the trials of each depth are."""
        return [slice(start, start + size) for start, size in zip(self.starts, self.sizes, strict=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fit:
    """The model with its parameters: variance of the noise, and of changes at each depth from 1 on."""

    levels: Array
    variances: Array
    noise: float
    change: Array


def _without_diverged(scores: Array, tree: _Tree) -> Array:
    """Return the scores with nan in place of those that say nothing."""
    kept = np.where(np.isfinite(scores), scores, np.nan)
    for depth in tree.depths():
        finite = kept[depth][np.isfinite(kept[depth])]
        if len(finite):
            middle = np.median(finite)
            kept[depth][kept[depth] < middle - DIVERGED * (finite.max() - middle)] = np.nan
    return kept


def _fit(scores: Array, tree: _Tree) -> _Fit:
    """Estimate the parameters, and the levels with them; the median change of scores is 1."""
    sizes, starts, first = tree.sizes[1:], tree.starts[1:] - tree.starts[1], tree.starts[1]
    seen = ~np.isnan(scores)
    noise, change, drift = 0.5, np.ones(len(sizes)), np.zeros(len(sizes))
    weights = np.ones(len(scores) - first)
    for _ in range(ITERATIONS):
        scales = np.repeat(change, sizes)
        levels, variances, spread = _smooth(scores, tree, noise, scales / weights, np.repeat(drift, sizes))
        moves = levels[first:] - levels[tree.parents[first:]]
        drift = _falling(np.add.reduceat(weights * moves, starts) / np.add.reduceat(weights, starts), sizes)
        squares = (moves - np.repeat(drift, sizes)) ** 2 + spread
        change = _falling(np.add.reduceat(weights * squares, starts) / sizes, sizes) + 1e-12
        weights = (FREEDOM + 1) / (FREEDOM + squares / np.repeat(change, sizes))
        noise = float(np.mean((scores - levels)[seen] ** 2 + variances[seen])) + 1e-12
    return _Fit(levels=levels, variances=variances, noise=noise, change=change)


def _smooth(scores: Array, tree: _Tree, noise: float, change: Array, drift: Array) -> tuple[Array, Array, Array]:
    """Return mean and variance of each level, and the variance of each change, given all scores.

    Upwards each trial tells its parent what is known from its subtree, as precision and precision times mean;
    downwards each gets its parent's level.
    """
    first, depths = tree.starts[1], tree.depths()
    seen = ~np.isnan(scores)
    precision: Any = seen / noise + 1e-12
    total = np.where(seen, scores, 0.0) / noise
    kept = np.empty(len(scores))
    for depth in reversed(depths[1:]):
        edge = slice(depth.start - first, depth.stop - first)
        kept[depth] = 1 / (1 + change[edge] * precision[depth])
        np.add.at(precision, tree.parents[depth], kept[depth] * precision[depth])
        without_drift = total[depth] - precision[depth] * drift[edge]
        np.add.at(total, tree.parents[depth], kept[depth] * without_drift)
    levels, variances = total / precision, 1 / precision
    spread = np.empty(len(scores) - first)
    for depth in depths[1:]:
        edge, above = slice(depth.start - first, depth.stop - first), tree.parents[depth]
        own = kept[depth] * change[edge]
        levels[depth] = kept[depth] * (levels[above] + drift[edge]) + own * total[depth]
        spread[edge] = own + (own * precision[depth]) ** 2 * variances[above]
        variances[depth] = own + kept[depth] ** 2 * variances[above]
    return levels, variances, spread


def _falling(values: Array, weights: npt.NDArray[np.intp]) -> Array:
    """Return the closest values that never rise: neighbours that do are pooled."""
    pools: list[tuple[float, float, int]] = []
    for value, weight in zip(values.tolist(), weights.tolist(), strict=True):
        pool = (value, float(weight), 1)
        while pools and pools[-1][0] < pool[0]:
            mean, heavy, count = pools.pop()
            both = heavy + pool[1]
            pool = ((mean * heavy + pool[0] * pool[1]) / both, both, count + pool[2])
        pools.append(pool)
    return np.repeat([pool[0] for pool in pools], [pool[2] for pool in pools])
