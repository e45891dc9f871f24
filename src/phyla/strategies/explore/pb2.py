"""Population based bandits (Parker-Holder et al. 2020, arXiv 2002.02518): explore by a model."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, final

import numpy as np

from phyla.records import JobKind, JobState, JsonObject, Scored, TrialRecord
from phyla.space import Float, Int, Scalar
from phyla.strategies.checks import check_rules
from phyla.strategies.explore import Explore, Explored, changes_of, propose_params
from phyla.strategies.explore.perturb import PERTURB
from phyla.strategies.strategy import Context, History, Population, lowest_generation
from phyla.validation import check, setting_error

Matrix: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]

LEAST_WINDOW = 200
STEPS = 30
CLIP = 2.0
FAR = 10.0
FEW = 0.05


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PB2:
    """Numbers are chosen where a model of the population's progress promises most: mean + kappa * deviation.

    A Gaussian process over age of the weights, fitness before, and hyperparameters, all scaled to [0, 1], predicts
    how much a trial gains per step over the trial that it started from. Gains are standardised and clipped at +-2,
    after a few outliers (beyond 10 deviations from the median) were moved nearer. A trial that ended at nan,
    broke, or was stopped counts as the worst gain there is. The marginal likelihood says how fast older gains
    count less, and how many of the last rows, 200 at least, are used. Running trials lower the deviation where
    they are, so that children differ. kappa is sqrt(0.2 ln(0.4 n)) for n rows, and 0 for n below 3.

    Children stay within `radius` of the parent, or a step of theirs, as in a trust region (Wan et al. 2022, arXiv
    2207.09405, section 3.1). Far from the parent the model knows least, and what promises most in one trial, such
    as almost no learning rate from a lucky checkpoint, can be bad for the rest of the training.

    Only Float and Int parameters that the parent has are modelled, from trials that have the same ones. The others
    are kept, or with a probability drawn afresh. Without enough rows, or where constraints allow none of the best
    points, `fallback` decides and the reason says why.

    Source: Parker-Holder, Nguyen and Roberts 2020, arXiv 2002.02518, algorithm 1 and section 4.

    Args:
        rows: how many of the newest completed trials to use.
        least_rows: with fewer rows than this, `fallback` decides.
        restarts: number of starting points of the search: the parent, and the others at random.
        radius: how far numbers move from the parent's at most, as a share of their range on their scale. With 1
            the whole range is searched, as in the paper.
        resample: probability, per parameter that is not modelled, of a fresh draw.
        fallback: how hyperparameters change without a model.
        repeatable: look only at generations that all members completed, and not at running trials. Then a study
            with `quorum=1.0` is the same with any number of workers, and children are more alike.
    """

    rows: int = 1000
    least_rows: int = 4
    restarts: int = 10
    radius: float = 0.15
    resample: float = 0.25
    fallback: Explore = PERTURB
    repeatable: bool = False

    def __post_init__(self) -> None:
        check_rules(self, "propose", "fallback")
        check(self, rows=2, least_rows=2, restarts=1, resample="[0, 1]", radius="(0, 1]")
        if self.least_rows > self.rows:
            raise setting_error(self, "rows least_rows", "there would never be a model; raise rows")

    def propose(self, source: Scored, population: Population, context: Context) -> Explored | None:
        proposal = self._by_model(source, population, context)
        if isinstance(proposal, Explored):
            return proposal
        explored = propose_params(self.fallback, source, population, context)
        if explored is None:
            return None
        return replace(explored, facts={**explored.facts, "model": {"rule": "pb2", "not_used": proposal}})

    def _by_model(self, source: Scored, population: Population, context: Context) -> Explored | str:
        """Return the most promising point of the model, or the reason for its absence."""
        space, params, changes = context.space, source.params, dict[str, Mapping[str, Scalar]]()
        modelled = {
            name: parameter for name, parameter in space.parameters.items() if isinstance(parameter, Float | Int)
        }
        unmodelled = [name for name in space.parameters if name in params and name not in modelled]
        redrawn = [name for name in unmodelled if context.rng.random() < self.resample]
        base = params
        if redrawn:
            base, changes = space.resample(params, context.rng, redrawn)
        numbers = {name: parameter for name, parameter in modelled.items() if name in params and name in base}
        if not numbers:
            return "no number to model"
        if source.order is None or not math.isfinite(source.order):
            return "the parent has no finite fitness"
        rows, pending = self._rows(population, context.history, numbers)
        finite = sum(math.isfinite(row.gain or 0.0) for row in rows)
        if finite < self.least_rows:
            return f"{finite} of the {self.least_rows} rows that a model needs"
        region = _region(numbers, params, self.radius)
        for units, model in _best_first(rows, pending, source, region, self.restarts, context.rng):
            values = {n: p.from_unit(u) for (n, p), u in zip(numbers.items(), units, strict=True)}
            if space.contains({**base, **values}):
                chosen = space.validate({**base, **values})
                all_changes = changes_of(params, chosen, "pb2").items()
                moved = {name: change for name, change in all_changes if name in numbers}
                return Explored(params=chosen, changes={**moved, **changes}, facts={"model": model})
        return "constraints allow nothing near the best points"

    def _rows(
        self, population: Population, history: History, numbers: Mapping[str, Float | Int]
    ) -> tuple[list["_Row"], list["_Row"]]:
        """Return the gains of trials that ended last, newest first, and the places of running ones."""
        ahead = 2 * len(population) if self.repeatable else 0
        done = [*history.last_completed(self.rows + ahead), *history.ended(None)]
        if self.repeatable:
            lowest = lowest_generation(population)
            done = [trial for trial in done if lowest is None or trial.generation < lowest]
            done = sorted(done, key=lambda trial: (-trial.generation, trial.member))[: self.rows]
        else:
            done = sorted(done, key=lambda trial: (trial.ended_at or 0.0, trial.id), reverse=True)[: self.rows]
            # In an order that clocks do not change, since sums of numbers depend on it.
            done.sort(key=lambda trial: trial.id, reverse=True)
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
        # Its member was retired, or its parent's files were lost, which is independent of its hyperparameters.
        return None
    gain = float("-inf") if trial.state in (JobState.FAILED, JobState.CANCELLED) else None
    if trial.order is not None and trial.reached_step is not None:
        gain = (trial.order - parent.order) / max(1, trial.reached_step - trial.start_step)
    return _Row(trial.start_step, parent.order, _units(numbers, trial.params), gain)


def _units(numbers: Mapping[str, Float | Int], params: JsonObject) -> tuple[float, ...]:
    return tuple([number.unit(params[name]) for name, number in numbers.items()])


@final
@dataclass(frozen=True, slots=True)
class _Region:
    """Where children may be: the parent's place, and the lowest and highest of each number, all in [0, 1]."""

    own: tuple[float, ...]
    low: Matrix
    high: Matrix

    def draw(self, count: int, rng: np.random.Generator) -> Matrix:
        drawn: Matrix = self.low + (self.high - self.low) * rng.random((count, len(self.own)))
        return drawn


def _region(numbers: Mapping[str, Float | Int], params: JsonObject, radius: float) -> _Region:
    """Return what is within the radius of the parent, and wide enough for the next values of stepped numbers."""
    low, high = [], []
    for name, number in numbers.items():
        value: Any = params[name]
        step, unit = number.step or 0, number.unit(value)
        low.append(max(0.0, min(unit - radius, number.unit(max(number.low, value - step)))))
        high.append(min(1.0, max(unit + radius, number.unit(min(number.high, value + step)))))
    return _Region(_units(numbers, params), np.array(low), np.array(high))


def kappa(rows: int) -> float:
    """Return the weight of the deviation beside the mean, for a number of rows."""
    return math.sqrt(max(0.0, 0.2 * math.log(0.4 * rows)))


def _best_first(
    rows: Sequence[_Row],
    pending: Sequence[_Row],
    source: Scored,
    region: _Region,
    restarts: int,
    rng: np.random.Generator,
) -> Iterator[tuple[Sequence[float], JsonObject]]:
    """Fit the model, and return points in [0, 1], highest upper bound first, with facts for the reason."""
    from scipy.optimize import minimize

    gains = np.array([row.gain for row in rows], dtype=np.float64)
    gains = without_outliers(np.maximum(gains, gains[np.isfinite(gains)].min()))
    everything = [*rows, *pending, _Row(source.step, source.order or 0.0, region.own, None)]
    places = np.array([(row.step, row.before) for row in everything], dtype=np.float64)
    places[:, 1] = without_outliers(places[:, 1])
    width = np.ptp(places, axis=0)
    scaled = (places - places.min(axis=0)) / np.where(width > 0, width, 1.0)
    points = np.column_stack([scaled, np.array([row.units for row in everything])])
    used = best_window(points[: len(rows)], standardise(gains)[0], LEAST_WINDOW)
    targets, center, spread = standardise(gains[:used])
    kernel = fit_kernel(points[:used], targets)
    posterior = Posterior(kernel, points[:used], targets, points[len(rows) : -1])
    fixed, weight = points[-1, :2], kappa(used)
    starts = np.concatenate([[region.own], region.draw(restarts - 1, rng)]).ravel()
    low, high = np.tile(region.low, restarts), np.tile(region.high, restarts)

    def placed(free: Matrix) -> Matrix:
        return np.column_stack([np.tile(fixed, (restarts, 1)), free.reshape(restarts, -1)])

    def loss(free: Matrix) -> tuple[float, Matrix]:
        value, gradient = posterior.upper_bound(placed(free), weight)
        return -float(value.sum()), -gradient[:, 1:].ravel()

    # All starts climb together: their sum is highest where each is, and the matrices are read once for all.
    bounds = list(zip(low, high, strict=True))
    optimum = minimize(loss, starts, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": STEPS})
    ends = np.concatenate([placed(np.clip(optimum.x, low, high)), placed(starts)])
    mean, deviation = posterior.predict(ends)
    for place in np.argsort(-(mean + weight * deviation), kind="stable"):
        model: JsonObject = {
            "rule": "pb2",
            "rows": used,
            "pending": len(pending),
            "kappa": weight,
            "mean": center + spread * float(mean[place]),
            "std": spread * float(deviation[place]),
            "epsilon": kernel.epsilon,
        }
        yield ends[place, 2:].tolist(), model


def without_outliers(values: Matrix) -> Matrix:
    """Return values with those beyond `FAR` median absolute deviations moved nearer to the median.

    Where more than `FEW` of them are far, they are no outliers but how gains are, and stay.
    """
    center = np.median(values)
    # Halves, since the difference of two finite numbers can be infinite.
    spread = 2 * 1.4826 * float(np.median(np.abs(values / 2 - center / 2)))
    if not 0 < FAR * spread < math.inf:
        return values
    clipped: Matrix = np.clip(values, center - FAR * spread, center + FAR * spread)
    return clipped if np.mean(clipped != values) <= FEW else values


def standardise(gains: Matrix) -> tuple[Matrix, float, float]:
    """Return gains of mean 0 and deviation 1, clipped at +-2; and the mean and deviation they had."""
    # Squares of large numbers would overflow.
    scale = float(np.abs(gains).max()) or 1.0
    center, spread = scale * float((gains / scale).mean()), scale * float((gains / scale).std())
    if not spread > 0:
        return np.zeros_like(gains), center, 1.0
    return np.clip((gains - center) / spread, -CLIP, CLIP), center, spread


BOUNDS = (
    (math.log(1e-2), math.log(1e2)),
    (math.log(1e-2), math.log(1e1)),
    (0.0, 0.5),
    (math.log(1e-3), math.log(2.0)),
)
"""Bounds of log length, log scale, epsilon and log noise, for inputs in [0, 1] and standardised targets."""

FITTED = 200
"""Rows that the four numbers are fitted on at most; a fit costs the cube of it, some thirty times."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """Covariance `scale * exp(-|x - x'|^2 / length) * (1 - epsilon)^(|t - t'| / 2)`, and `noise` on top.

    Points are rows `(t, x...)`, all in [0, 1]: arrays of shape (n, 1 + d); targets have shape (n,). Source:
    Parker-Holder et al. 2020, arXiv 2002.02518, section 4, after Bogunovic et al. 2016 (time-varying GP-UCB).
    """

    length: float = 0.5
    scale: float = 1.0
    epsilon: float = 0.1
    noise: float = 0.1

    def covariance(self, first: Matrix, second: Matrix) -> Matrix:
        """Return the covariances of two lists of points, without noise; shape (first, second)."""
        distance, elapsed = _distances(first, second)
        exponent = distance * (-1 / self.length) + elapsed * (0.5 * math.log1p(-self.epsilon))
        covariance: Matrix = self.scale * np.exp(exponent)
        return covariance


def likelihood(kernel: Kernel, points: Matrix, targets: Matrix) -> tuple[float, Matrix]:
    """Return the log marginal likelihood, and its derivatives by log length, log scale, epsilon and log noise."""
    distance, elapsed = _distances(points, points)
    clean, count = kernel.covariance(points, points), len(targets)
    factor = _factor(clean, kernel.noise)
    inverse = _solve(factor, np.eye(count))
    weights = inverse @ targets
    value = -0.5 * targets @ weights - np.log(np.diag(factor)).sum() - 0.5 * count * math.log(2 * math.pi)
    # d/dp = trace((w w' - K^-1) dK/dp) / 2, and every dK/dp but the noise's is the covariance times something.
    outer = np.outer(weights, weights) - inverse
    weighted = outer * clean
    gradient = 0.5 * np.array(
        [
            (weighted * distance).sum() / kernel.length,
            weighted.sum(),
            (weighted * elapsed).sum() * (-0.5 / (1 - kernel.epsilon)),
            np.trace(outer) * kernel.noise,
        ]
    )
    return float(value), gradient


def fit_kernel(points: Matrix, targets: Matrix) -> Kernel:
    """Return the kernel of the highest marginal likelihood, by L-BFGS-B; of many rows an even share is used."""
    from scipy.optimize import minimize

    if len(targets) > FITTED:
        chosen = np.unique(np.linspace(0, len(targets) - 1, FITTED).round().astype(int))
        points, targets = points[chosen], targets[chosen]

    def loss(free: Matrix) -> tuple[float, Matrix]:
        value, gradient = likelihood(_kernel(free), points, targets)
        return -value, -gradient

    start = Kernel()
    first = [math.log(start.length), math.log(start.scale), start.epsilon, math.log(start.noise)]
    optimum = minimize(loss, first, jac=True, method="L-BFGS-B", bounds=BOUNDS, options={"maxiter": 30})
    return _kernel(np.asarray(optimum.x, dtype=np.float64))


def best_window(points: Matrix, targets: Matrix, least: int) -> int:
    """Return how many of the rows, newest first but `least`, are most likely per row under the default kernel."""
    from scipy.linalg import solve_triangular

    count = len(targets)
    if count <= least:
        return count
    kernel = Kernel()
    factor = _factor(kernel.covariance(points, points), kernel.noise)
    residual = solve_triangular(factor, targets, lower=True, check_finite=False)
    per_row = np.cumsum(-0.5 * residual**2 - np.log(np.diag(factor)))
    windows = np.unique([*range(least, count, 10), count])
    return int(windows[np.argmax(per_row[windows - 1] / windows)])


@final
class Posterior:
    """The posterior after observations; pending points lower its variance and leave its mean."""

    def __init__(self, kernel: Kernel, points: Matrix, targets: Matrix, pending: Matrix | None = None) -> None:
        self._kernel = kernel
        count = len(targets)
        everything = points if pending is None or not len(pending) else np.concatenate([points, pending])
        factor = _factor(kernel.covariance(everything, everything), kernel.noise)
        # The corner of the factor of all points is the factor of the observed ones.
        self._weights = _solve(factor[:count, :count], targets)
        self._factor = factor
        self._points = everything

    def predict(self, points: Matrix) -> tuple[Matrix, Matrix]:
        """Return mean and standard deviation of the function (without noise) at points of shape (q, 1 + d)."""
        mean, deviation, _, _ = self._predict(points)
        return mean, deviation

    def upper_bound(self, points: Matrix, kappa: float) -> tuple[Matrix, Matrix]:
        """Return mean + kappa * standard deviation, shape (q,), and its gradient by x, shape (q, d)."""
        mean, deviation, near, solved = self._predict(points)
        count = len(self._weights)
        # dk/dx = -2 (x - x') k / length, so every gradient is a weighted mean of differences.
        by_mean = self._pull(points, near[:count] * self._weights[:, None], self._points[:count])
        by_variance = self._pull(points, near * solved, self._points) * -2
        gradient: Matrix = by_mean + (kappa / (2 * deviation))[:, None] * by_variance
        return mean + kappa * deviation, gradient

    def _predict(self, points: Matrix) -> tuple[Matrix, Matrix, Matrix, Matrix]:
        near = self._kernel.covariance(self._points, points)
        solved = _solve(self._factor, near)
        mean: Matrix = self._weights @ near[: len(self._weights)]
        variance = self._kernel.scale - (near * solved).sum(axis=0)
        deviation: Matrix = np.sqrt(np.maximum(variance, 1e-9 * self._kernel.scale))
        return mean, deviation, near, solved

    def _pull(self, points: Matrix, weights: Matrix, towards: Matrix) -> Matrix:
        total = weights.sum(axis=0)[:, None] * points[:, 1:] - weights.T @ towards[:, 1:]
        pulled: Matrix = total * (-2 / self._kernel.length)
        return pulled


def _kernel(free: Sequence[float] | Matrix) -> Kernel:
    return Kernel(
        length=math.exp(free[0]), scale=math.exp(free[1]), epsilon=float(free[2]), noise=math.exp(free[3])
    )


def _distances(first: Matrix, second: Matrix) -> tuple[Matrix, Matrix]:
    """Return squared distances of x and distances in time, each of shape (first, second)."""
    a, b = first[:, 1:], second[:, 1:]
    squared = (a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1)[None, :] - 2 * (a @ b.T)
    np.maximum(squared, 0, out=squared)
    elapsed: Matrix = np.abs(first[:, :1] - second[:, 0][None, :])
    return squared, elapsed


def _factor(covariance: Matrix, noise: float) -> Matrix:
    from scipy.linalg import cholesky

    noisy = covariance + noise * np.eye(len(covariance))
    factor: Matrix = cholesky(noisy, lower=True, overwrite_a=True, check_finite=False)
    return factor


def _solve(factor: Matrix, values: Matrix) -> Matrix:
    from scipy.linalg import cho_solve

    solved: Matrix = cho_solve((factor, True), values, check_finite=False)
    return solved
