"""Population based bandits (Parker-Holder et al. 2020, arXiv 2002.02518): explore by a model, not by chance."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import final

import numpy as np

from phyla.errors import ConfigurationError
from phyla.records import JobKind, JobState, JsonObject, Scored, TrialRecord
from phyla.space import Float, Int
from phyla.strategies.checks import check, check_rules
from phyla.strategies.explore import Explore, Explored, changes_of
from phyla.strategies.explore.gaussian_process import Matrix, Posterior, best_window, fitted
from phyla.strategies.explore.perturb import PERTURB
from phyla.strategies.strategy import Context, History, Population, lowest_generation

LEAST_WINDOW = 200
STEPS = 30
CLIP = 2.0
FAR = 10.0
FEW = 0.05


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PB2:
    """Numbers are chosen where a model of the population's progress promises most: mean + kappa * deviation.

    The model is a Gaussian process over age of the weights, fitness before, and hyperparameters, all scaled to
    [0, 1]. It predicts how much a trial gains per step over the fitness of the trial that it started from. Gains
    are standardised and clipped at +-2, after a few far from the median (10 deviations) were moved nearer to it. A
    trial that ended at nan, broke, or was stopped counts as the worst gain there is. Older gains count less, as
    fast as the marginal likelihood says; it also says how many of the last rows, 200 at least, are used. Trials
    that are running lower the deviation where they are, so that children differ; who is running depends on who
    asked first. kappa is sqrt(0.2 ln(0.4 n)) for n rows, and 0 for n below 3.

    Only the Float and Int parameters that the parent has are modelled, and only trials that have the same
    ones are rows. The others are kept, or with a probability drawn afresh. Without enough rows, or where
    constraints allow none of the best points, `fallback` decides and the reason says why.

    Source: Parker-Holder, Nguyen and Roberts 2020, Provably efficient online hyperparameter optimization with
    population-based bandits, algorithm 1 and section 4.

    Args:
        rows: the last so many completed trials are looked at.
        least_rows: with fewer rows than this, `fallback` decides.
        restarts: where the search for the best point starts from: the parent, and so many less one at random.
        resample: probability, per parameter that is not modelled, of a fresh draw.
        fallback: how hyperparameters change without a model.
        repeatable: look only at generations that all members completed, and not at running trials. Then a
            study with `quorum=1.0` is the same with any number of workers, and children are more alike.
    """

    rows: int = 1000
    least_rows: int = 4
    restarts: int = 10
    resample: float = 0.25
    fallback: Explore = PERTURB
    repeatable: bool = False

    def __post_init__(self) -> None:
        check_rules(self, "propose", "fallback")
        check(self, rows=2, least_rows=2, restarts=1, resample="[0, 1]")
        if self.least_rows > self.rows:
            raise ConfigurationError(
                f"PB2(rows={self.rows}, least_rows={self.least_rows}): there would never be a model; raise rows"
            )

    def propose(self, source: Scored, population: Population, context: Context) -> Explored | None:
        space, params = context.space, source.params
        kept, changes = self._others(params, context)
        numbers = {
            name: parameter
            for name, parameter in space.parameters.items()
            if isinstance(parameter, Float | Int) and name in params and name in kept
        }
        if not numbers:
            return self._fall_back(source, population, context, "no number to model")
        if source.order is None or not math.isfinite(source.order):
            return self._fall_back(source, population, context, "the parent has no finite fitness")
        rows, pending = self._rows(population, context.history, numbers)
        finite = sum(math.isfinite(row.gain or 0.0) for row in rows)
        if finite < self.least_rows:
            why = f"{finite} of the {self.least_rows} rows that a model needs"
            return self._fall_back(source, population, context, why)
        own = _units(numbers, params)
        for units, told in _best_first(rows, pending, source, own, self.restarts, context.rng):
            values = {n: p.from_unit(u) for (n, p), u in zip(numbers.items(), units, strict=True)}
            if space.contains({**kept, **values}):
                chosen = space.validate({**kept, **values})
                all_changes = changes_of(params, chosen, "pb2").items()
                moved = {name: change for name, change in all_changes if name in numbers}
                return Explored(params=chosen, changes={**moved, **changes}, facts={"model": told})
        return self._fall_back(source, population, context, "constraints allow nothing near the best points")

    def _others(self, params: JsonObject, context: Context) -> tuple[JsonObject, Mapping[str, JsonObject]]:
        """Return the parameters with those that are not modelled kept or drawn afresh."""
        parameters = context.space.parameters
        others = [name for name in parameters if name in params and not isinstance(parameters[name], Float | Int)]
        drawn = [name for name in others if context.rng.random() < self.resample]
        if not drawn:
            return params, {}
        return context.space.resample(params, context.rng, drawn)

    def _fall_back(self, source: Scored, population: Population, context: Context, why: str) -> Explored | None:
        explored = self.fallback.propose(source, population, context)
        if explored is None:
            return None
        return replace(explored, facts={**explored.facts, "model": {"rule": "pb2", "not_used": why}})

    def _rows(
        self, population: Population, history: History, numbers: Mapping[str, Float | Int]
    ) -> tuple[list["_Row"], list["_Row"]]:
        """Return the gains of trials that ended last, newest first, and the places of running ones."""
        ahead = 2 * len(population) if self.repeatable else 0
        done = [*history.last_completed(self.rows + ahead), *history.ended(None)]
        if self.repeatable:
            lowest = lowest_generation(population)
            done = [one for one in done if lowest is None or one.generation < lowest]
            done = sorted(done, key=lambda one: (-one.generation, one.member))[: self.rows]
        else:
            done = sorted(done, key=lambda one: (one.ended_at or 0.0, one.id), reverse=True)[: self.rows]
            # In an order that clocks do not change, since sums of numbers depend on it.
            done.sort(key=lambda one: one.id, reverse=True)
        known = {trial.id: trial for trial in done}

        def rows(trials: Iterable[TrialRecord]) -> list[_Row]:
            return [row for trial in trials if (row := _row(trial, known, history, numbers)) is not None]

        ended = [row for row in rows(done) if row.gain is not None]
        return ended, [] if self.repeatable else rows(history.unfinished())


@final
@dataclass(frozen=True, slots=True)
class _Row:
    """One trial: where its weights were, what it trained with, what it gained per step.

    The gain is None while it runs, and minus infinity if it broke, was stopped, or ended at nan or an infinity.
    """

    step: int
    before: float
    units: tuple[float, ...]
    gain: float | None


def _row(
    trial: TrialRecord, known: Mapping[int, TrialRecord], history: History, numbers: Mapping[str, Float | Int]
) -> _Row | None:
    """Return a trial's row: its gain is over the trial whose weights it started from, also across a jump."""
    if trial.kind is not JobKind.TRAIN or trial.parent is None or not numbers.keys() <= trial.params.keys():
        return None
    parent = known.get(trial.parent) or history.trial(trial.parent)
    if parent.order is None or not math.isfinite(parent.order):
        return None
    if trial.state is JobState.CANCELLED and trial.stop_reason is None:
        # Its member was retired, or its parent's files were lost: that says nothing about its hyperparameters.
        return None
    gain = float("-inf") if trial.state in (JobState.FAILED, JobState.CANCELLED) else None
    if trial.order is not None and trial.reached_step is not None:
        gain = (trial.order - parent.order) / max(1, trial.reached_step - trial.start_step)
    return _Row(trial.start_step, parent.order, _units(numbers, trial.params), gain)


def _units(numbers: Mapping[str, Float | Int], params: JsonObject) -> tuple[float, ...]:
    return tuple([number.unit(params[name]) for name, number in numbers.items()])


def kappa(rows: int) -> float:
    """Return how many deviations count on top of the mean, after so many rows."""
    return math.sqrt(max(0.0, 0.2 * math.log(0.4 * rows)))


def _best_first(
    rows: Sequence[_Row],
    pending: Sequence[_Row],
    source: Scored,
    own: tuple[float, ...],
    restarts: int,
    rng: np.random.Generator,
) -> Iterator[tuple[Sequence[float], JsonObject]]:
    """Fit the model, and return points in [0, 1], the highest upper bound first, with what the reason tells."""
    from scipy.optimize import minimize

    gains = np.array([row.gain for row in rows], dtype=np.float64)
    gains = without_outliers(np.maximum(gains, gains[np.isfinite(gains)].min()))
    everything = [*rows, *pending, _Row(source.step, source.order or 0.0, own, None)]
    places = np.array([(row.step, row.before) for row in everything], dtype=np.float64)
    places[:, 1] = without_outliers(places[:, 1])
    low, width = places.min(axis=0), np.ptp(places, axis=0)
    scaled = (places - low) / np.where(width > 0, width, 1.0)
    points = np.column_stack([scaled, np.array([row.units for row in everything])])
    used = best_window(points[: len(rows)], standardised(gains)[0], LEAST_WINDOW)
    targets, center, spread = standardised(gains[:used])
    kernel = fitted(points[:used], targets)
    posterior = Posterior(kernel, points[:used], targets, points[len(rows) : -1])
    fixed, weight = points[-1, :2], kappa(used)
    starts = np.concatenate([[own], rng.random((restarts - 1, len(own)))]).ravel()

    def placed(free: Matrix) -> Matrix:
        return np.column_stack([np.tile(fixed, (restarts, 1)), free.reshape(restarts, len(own))])

    def loss(free: Matrix) -> tuple[float, Matrix]:
        value, gradient = posterior.upper_bound(placed(free), weight)
        return -float(value.sum()), -gradient[:, 1:].ravel()

    # All starts climb together: their sum is highest where each is, and the matrices are read once for all.
    bounds = [(0, 1)] * starts.size
    found = minimize(loss, starts, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": STEPS})
    ends = np.concatenate([placed(np.clip(found.x, 0, 1)), placed(starts)])
    mean, deviation = posterior.predict(ends)
    for place in np.argsort(-(mean + weight * deviation), kind="stable"):
        told: JsonObject = {
            "rule": "pb2",
            "rows": used,
            "pending": len(pending),
            "kappa": weight,
            "mean": center + spread * float(mean[place]),
            "std": spread * float(deviation[place]),
            "epsilon": kernel.epsilon,
        }
        yield ends[place, 2:].tolist(), told


def without_outliers(values: Matrix) -> Matrix:
    """Return values with those far from the median moved nearer: a score or two must not hide all the others.

    Far is more than `FAR` median absolute deviations, as standard deviations of a normal distribution. Where more
    than `FEW` of them are far, they are no outliers but how gains are, and stay.
    """
    center = np.median(values)
    # Halves, since the difference of two finite numbers can be infinite.
    spread = 2 * 1.4826 * float(np.median(np.abs(values / 2 - center / 2)))
    if not 0 < FAR * spread < math.inf:
        return values
    clipped: Matrix = np.clip(values, center - FAR * spread, center + FAR * spread)
    return clipped if np.mean(clipped != values) <= FEW else values


def standardised(gains: Matrix) -> tuple[Matrix, float, float]:
    """Return gains of mean 0 and deviation 1, clipped at +-2; and the mean and deviation they had."""
    # Squares of large numbers would overflow.
    scale = float(np.abs(gains).max()) or 1.0
    center, spread = scale * float((gains / scale).mean()), scale * float((gains / scale).std())
    if not spread > 0:
        return np.zeros_like(gains), center, 1.0
    return np.clip((gains - center) / spread, -CLIP, CLIP), center, spread
