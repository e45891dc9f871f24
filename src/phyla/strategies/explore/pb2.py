"""Population based bandits (Parker-Holder et al. 2020, arXiv 2002.02518): explore by a model."""

import math
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any, Self, final

import numpy as np

from phyla.records import JobKind, JobState, JsonObject, Scored, TrialRecord
from phyla.space import Choice, Float, Int, Scalar, Space
from phyla.space.params import is_same
from phyla.strategies.checks import check_rules
from phyla.strategies.explore import Explore, Explored, changes_of, propose_params
from phyla.strategies.explore.gaussian_process import Matrix, Posterior, best_window, fit_kernel
from phyla.strategies.explore.perturb import PERTURB
from phyla.strategies.strategy import Context, History, Population, lowest_generation
from phyla.validation import check, setting_error

LEAST_WINDOW = 200
APART = 1.0
"""The distance between two values of a choice, to the model; that between the ends of a range is 1, too."""
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

    Modelled are Float, Int and Choice parameters that the parent has, from trials that have the same ones. To the
    model, two values of a Choice are as far apart as the ends of a range, and a child differs from its parent in
    one Choice at most. Other parameters, such as a Choice that a `when` names, are kept, or with a probability
    drawn afresh. Without enough rows, or where constraints allow none of the best
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
        modelled = _Inputs.of(space, params).names
        unmodelled = [name for name in space.parameters if name in params and name not in modelled]
        redrawn = [name for name in unmodelled if context.rng.random() < self.resample]
        base = params
        if redrawn:
            base, changes = space.resample(params, context.rng, redrawn)
        inputs = _Inputs.of(space, params.keys() & base.keys())
        if not inputs.names:
            return "nothing to model"
        if source.order is None or not math.isfinite(source.order):
            return "the parent has no finite fitness"
        rows, pending = self._rows(population, context.history, inputs)
        finite = sum(math.isfinite(row.gain or 0.0) for row in rows)
        if finite < self.least_rows:
            return f"{finite} of the {self.least_rows} rows that a model needs"
        region = _region(inputs, params, self.radius)
        for units, model in _best_first(rows, pending, source, region, self.restarts, context.rng):
            values = inputs.values(units)
            if space.contains({**base, **values}):
                chosen = space.validate({**base, **values})
                all_changes = changes_of(params, chosen, "pb2").items()
                moved = {name: change for name, change in all_changes if name in inputs.names}
                return Explored(params=chosen, changes={**moved, **changes}, facts={"model": model})
        return "constraints allow nothing near the best points"

    def _rows(
        self, population: Population, history: History, inputs: "_Inputs"
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
            return [row for trial in trials if (row := _row(trial, known, history, inputs)) is not None]

        ended = [row for row in rows(done) if row.gain is not None]
        return ended, [] if self.repeatable else rows(history.unfinished())


@final
@dataclass(frozen=True, slots=True)
class _Inputs:
    """Modelled parameters. Units: numbers in [0, 1], then a code for each choice: places that are `APART`."""

    numbers: Mapping[str, Float | Int]
    choices: Mapping[str, Choice]

    @classmethod
    def of(cls, space: Space, names: Container[str]) -> Self:
        """Return the inputs among some parameters. A choice that decides which others there are is left out."""
        parameters = {name: parameter for name, parameter in space.parameters.items() if name in names}
        deciding = {name for parameter in space.parameters.values() for name in parameter.when or ()}
        return cls(
            {name: parameter for name, parameter in parameters.items() if isinstance(parameter, Float | Int)},
            {
                name: parameter
                for name, parameter in parameters.items()
                if isinstance(parameter, Choice) and name not in deciding
            },
        )

    @property
    def names(self) -> set[str]:
        return {*self.numbers, *self.choices}

    def units(self, params: Mapping[str, Any]) -> tuple[float, ...]:
        return (*self.places(params), *self.codes(params))

    def places(self, params: Mapping[str, Any]) -> list[float]:
        """Return where the numbers are in their ranges, on their scales."""
        return [number.unit(params[name]) for name, number in self.numbers.items()]

    def codes(self, params: Mapping[str, Any]) -> list[float]:
        return [
            APART / math.sqrt(2) if is_same(value, params[name]) else 0.0
            for name, choice in self.choices.items()
            for value in choice.values
        ]

    def near(self, params: Mapping[str, Any]) -> list[list[float]]:
        """Return the codes of these choices, and of those with one other value."""
        others = [
            {**params, name: value}
            for name, choice in self.choices.items()
            for value in choice.values
            if not is_same(value, params[name])
        ]
        return [self.codes(choices) for choices in (params, *others)]

    def values(self, units: Sequence[float]) -> dict[str, Scalar]:
        rest = iter(units)
        numbers = {name: number.from_unit(next(rest)) for name, number in self.numbers.items()}
        choices = {
            name: max(zip(choice.values, rest, strict=False), key=itemgetter(1))[0]
            for name, choice in self.choices.items()
        }
        return {**numbers, **choices}


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


def _row(trial: TrialRecord, known: Mapping[int, TrialRecord], history: History, inputs: _Inputs) -> _Row | None:
    """Return a trial's row: its gain is over the trial whose weights it started from, even across a jump."""
    if trial.kind is not JobKind.TRAIN or trial.parent is None or not inputs.names <= trial.params.keys():
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
    return _Row(trial.start_step, parent.order, inputs.units(trial.params), gain)


@final
@dataclass(frozen=True, slots=True)
class _Region:
    """Where children may be: the parent's units, the lowest and highest of each number, and codes of choices."""

    own: tuple[float, ...]
    low: Matrix
    high: Matrix
    codes: Matrix

    def starts(self, count: int, rng: np.random.Generator) -> tuple[Matrix, Matrix, Matrix]:
        """Return units to climb from, about `count`, with the lowest and highest that each may come to.

        They are shared out evenly among the codes; the first with each has the numbers of the parent.
        """
        each = max(1, count // len(self.codes))
        codes = np.repeat(self.codes, each, axis=0)
        places = self.low + (self.high - self.low) * rng.random((len(codes), len(self.low)))
        places[::each] = self.own[: len(self.low)]
        low, high = (np.column_stack([np.tile(end, (len(codes), 1)), codes]) for end in (self.low, self.high))
        return np.column_stack([places, codes]), low, high


def _region(inputs: _Inputs, params: JsonObject, radius: float) -> _Region:
    """Return what is within the radius of the parent, and wide enough for the next values of stepped numbers."""
    low, high = [], []
    for name, number in inputs.numbers.items():
        value: Any = params[name]
        step, unit = number.step or 0, number.unit(value)
        low.append(max(0.0, min(unit - radius, number.unit(max(number.low, value - step)))))
        high.append(min(1.0, max(unit + radius, number.unit(min(number.high, value + step)))))
    return _Region(inputs.units(params), np.array(low), np.array(high), np.array(inputs.near(params)))


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
    starts, low, high = region.starts(restarts, rng)

    def placed(free: Matrix) -> Matrix:
        return np.column_stack([np.tile(fixed, (len(starts), 1)), free.reshape(starts.shape)])

    def loss(free: Matrix) -> tuple[float, Matrix]:
        value, gradient = posterior.upper_bound(placed(free), weight)
        return -float(value.sum()), -gradient[:, 1:].ravel()

    # All starts climb together: their sum is highest where each is, and the matrices are read once for all.
    bounds = list(zip(low.ravel(), high.ravel(), strict=True))
    optimum = minimize(
        loss, starts.ravel(), jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": STEPS}
    )
    ends = np.concatenate([placed(np.clip(optimum.x, low.ravel(), high.ravel())), placed(starts)])
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
    with np.errstate(over="ignore"):  # no value is beyond an infinite bound
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
