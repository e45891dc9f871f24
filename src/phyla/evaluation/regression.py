"""Regressions: where a sequence of checkpoints got worse, whatever the order in which they were evaluated.

At each step the mean of the newest checkpoints is compared with the mean of those before them, for several sizes
of both (`WINDOWS`): that is the likelihood ratio of a change of the mean from an unknown level, with windows.
Sources: Siegmund and Venkatraman 1995, Using the generalized likelihood ratio statistic for sequential detection
of a change-point; Lai 1995, Sequential changepoint detection in quality control and dynamical systems (windows).

- **Noise.** Equal checkpoints differ, since samples differ and training wanders. Earlier comparisons of the same
  size measure it, so correlated values of successive checkpoints count only as often as they vary independently.
  Standard errors count like `PRIOR` earlier comparisons. Where nearly all were for the better, training improves,
  and only those for the worse are noise. Larger windows have at least the noise of smaller ones. Overlapping means
  of k values give 1.5 / k degrees of freedom each (Meketon and Schmeiser 1984, Overlapping batch means: something
  for nothing?).
- **Error.** Each checkpoint may spend `RATE`, over all comparisons and all metrics of a suite, so the expected
  number of false alarms in a run is at most `RATE` times its checkpoints, by the union bound. That
  holds for normal values; those with outliers give more.
- **After an alarm** the checkpoints that stay nearer to the lower level than to the one before do not count as
  history. `SETTLED` of them in a row are the new level.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Self, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from phyla.evaluation.metric import Metric
from phyla.evaluation.statistics import PerSeed, per_seed

WINDOWS: Final = ((1, 1), (1, 8), (1, 32), (5, 32), (20, 32))
"""How many checkpoints are compared, and with how many before them, at most."""
RATE: Final = 0.0005
"""Expected share of equal checkpoints that are called regressions, at most."""
PRIOR: Final = 5
"""How many earlier comparisons the standard errors count as."""
HISTORY: Final = 128
"""How many earlier comparisons tell the noise."""
WORSE: Final = 0.25
"""Share of changes for the worse above which those for the better are noise, too."""
SETTLED: Final = 8
"""How many checkpoints in a row make a new level."""
ROUNDING: Final = 1e-12
"""Differences below this share of the values compared are rounding errors."""

SURE: Final = 0.001
"""Share of the error with which a fall is certain even if results of earlier checkpoints are still to come."""

Floats: TypeAlias = NDArray[np.float64]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One metric on one checkpoint: its value, standard error, and means by seed, where these are known."""

    value: float
    stderr: float | None = None
    seeds: Mapping[int, float] = field(default_factory=dict)

    @classmethod
    def of(cls, metrics: Mapping[str, Metric], name: str) -> Self:
        """Read a metric of an eval task."""
        summary, by_seed = metrics[name].summary(), metrics.get(per_seed(name))
        seeds = by_seed.seeds if isinstance(by_seed, PerSeed) else {}
        means = {seed: moments.mean for seed, moments in seeds.items() if moments.n}
        return cls(value=summary[""], stderr=summary.get("stderr"), seeds=means)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Regression:
    """A fall of the level.

    Attributes:
        first: place in the sequence of the first of the worse checkpoints.
        place: of the one with which it was seen.
        last: of the last one on the lower level; the reference is the new level from there on if that settles.
        after: how many checkpoints, up to that place, were compared.
        before: with how many before them; 0 where the value is nan or infinite and was a number before.
        current: mean of those that were compared.
        reference: mean of those before.
        p: of the comparison, before it is shared among all of them.
    """

    first: int
    place: int
    last: int
    after: int = 1
    before: int
    current: float
    reference: float
    p: float = 0.0


def regressions(measured: Sequence[Measured], *, maximize: bool = True, metrics: int = 1) -> list[Regression]:
    """Return where a sequence got worse; `metrics` share the error."""
    sign = 1.0 if maximize else -1.0
    values = np.array([sign * item.value for item in measured], dtype=float)
    places = np.flatnonzero(np.isfinite(values))
    noise = _noise([item for item in measured if np.isfinite(item.value)])
    alarms = [
        replace(
            fall,
            **{name: int(places[getattr(fall, name)]) for name in ("first", "place", "last")},
            **{name: sign * getattr(fall, name) for name in ("current", "reference")},
        )
        for fall in _falls(values[places], noise, error_of(metrics))
    ]
    return sorted([*alarms, *_not_finite(measured)], key=lambda alarm: alarm.place)


def error_of(metrics: int) -> float:
    """Return the largest p at which one comparison is a regression where that many metrics share the error."""
    return RATE / (len(WINDOWS) * metrics)


def _not_finite(measured: Sequence[Measured]) -> Iterator[Regression]:
    finite = [bool(np.isfinite(item.value)) for item in measured]
    for place in range(1, len(finite)):
        if finite[place - 1] and not finite[place]:
            last = next((end for end in range(place, len(finite)) if finite[end]), len(finite)) - 1
            current, reference = measured[place].value, measured[place - 1].value
            yield Regression(first=place, place=place, last=last, before=0, current=current, reference=reference)


def _noise(measured: Sequence[Measured]) -> Floats:
    """Return the variance of each value; nan where it is unknown."""
    partners = [measured[min(abs(place - 1), len(measured) - 1)] for place in range(len(measured))]
    return np.array([_variance(*pair) for pair in zip(measured, partners, strict=True)], dtype=float)


def _variance(item: Measured, other: Measured) -> float:
    """Return the variance of a value: where the other one has the same seeds, half that of their difference."""
    if len(item.seeds) > 1 and item.seeds.keys() == other.seeds.keys():
        differences = [mean - other.seeds[seed] for seed, mean in item.seeds.items()]
        return float(np.var(differences, ddof=1)) / len(differences) / 2
    return np.nan if item.stderr is None else item.stderr * item.stderr


def _falls(values: Floats, noise: Floats, rate: float) -> Iterator[Regression]:
    history, ahead = np.arange(0), np.arange(len(values))
    while ahead.size:
        order = np.concatenate([history, ahead])
        p, windows = _scan(values[order], noise[order])
        hits = np.flatnonzero(p[history.size :] <= rate)
        if not hits.size:
            return
        place = int(history.size + hits[0])
        after, before = windows[place]
        start = place - after + 1
        current, reference = values[order[start : place + 1]].mean(), values[order[start - before : start]].mean()
        end = _end(values[order], start, place + 1, reference)
        yield Regression(
            first=int(order[start]),
            place=int(order[place]),
            last=int(order[end - 1]),
            after=int(after),
            before=int(before),
            current=float(current),
            reference=float(reference),
            p=float(p[place]),
        )
        history, ahead = order[start:end] if end - start >= SETTLED else order[:start], order[end:]


def _end(values: Floats, start: int, end: int, reference: float) -> int:
    """Return where the lower level ends, or has settled."""
    while end < len(values) and end - start < SETTLED and 2 * values[end] < reference + values[start:end].mean():
        end += 1
    return end


def _scan(values: Floats, noise: Floats) -> tuple[Floats, NDArray[np.int64]]:
    """Return the smallest p of the comparisons that end with each value, and the windows of that one."""
    from scipy.special import stdtr

    p, windows = np.ones(len(values)), np.ones((len(values), 2), dtype=np.int64)
    known, noise = np.isfinite(noise).astype(float), np.where(np.isfinite(noise), noise, 0.0)
    variances, freedoms = np.full(len(values), -1.0), np.zeros(len(values))
    for after, most in WINDOWS:
        ends = np.arange(after + 1, len(values) + 1)
        before, last = np.minimum(most, ends - after), ends - 1
        falls = _falls_between(values, ends, after, before, most)
        own, trust = (PRIOR * _sums(part, after + most)[ends] / (after + before) for part in (noise, known))
        squares, count = _earlier(falls, after)
        with np.errstate(all="ignore"):
            variance, freedom = (own + squares) / (trust + count), trust + count * min(1.0, 1.5 / after)
            wider = ~(variance <= variances[last])
            variances[last] = np.where(wider, variance, variances[last])
            freedoms[last] = np.where(wider, freedom, freedoms[last])
            chances = stdtr(freedoms[last], -falls / np.sqrt(variances[last]))
        smaller = chances < p[last]
        p[last[smaller]] = chances[smaller]
        windows[last[smaller], 0], windows[last[smaller], 1] = after, before[smaller]
    return p, windows


def _falls_between(
    values: Floats, ends: NDArray[np.int64], after: int, before: NDArray[np.int64], most: int
) -> Floats:
    """Return how far the means of windows fall, in units that have the variance of one value."""
    earlier, later = _sums(values, most)[ends - after] / before, _sums(values, after)[ends] / after
    falls = (earlier - later) / np.sqrt(1 / after + 1 / before)
    return np.where(np.abs(falls) <= ROUNDING * np.maximum(np.abs(earlier), np.abs(later)), 0.0, falls)


def _earlier(falls: Floats, after: int) -> tuple[Floats, Floats]:
    """Return sum of squares and number of the comparisons before each that share none of its newest values."""
    past = np.maximum(np.arange(falls.size) - after + 1, 0)
    worse = (falls > 0).astype(float)
    with np.errstate(over="ignore"):
        of_all, of_worse = _sums(falls**2, HISTORY)[past], _sums(np.maximum(falls, 0) ** 2, HISTORY)[past]
    count, count_worse = np.minimum(past, HISTORY).astype(float), _sums(worse, HISTORY)[past]
    wander = count_worse >= WORSE * count
    return np.where(wander, of_all, of_worse), np.where(wander, count, count_worse)


def _sums(values: Floats, width: int) -> Floats:
    """Return the sum of up to `width` values before each place, the end included."""
    padded = np.concatenate([np.zeros(width), values])
    sums: Floats = np.lib.stride_tricks.sliding_window_view(padded, width).sum(axis=1)
    return sums
