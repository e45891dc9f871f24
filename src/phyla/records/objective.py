"""What a study selects for."""

import math
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from typing import Any, ClassVar, Protocol, TypeAlias, TypedDict, final

from phyla.errors import ConfigurationError
from phyla.records.json import JsonObject
from phyla.validation import plain

WORST = -math.inf
UNLESS_NONE = {"stored": "unless it is None"}
"""Metadata of fields that are stored only if not None, so that studies without them stay unchanged."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The judgement of an objective on the metrics of one trial.

    Numbers of other libraries become Python's own, and sort keys that are not finite become -inf.

    Attributes:
        fitness: the number that tables and figures show.
        order: sort key, higher is better; -inf for what may neither donate nor be the best.
        orders: sort keys of the goals that are traded off, as in `Objective.tradeoffs`; empty without any.
        infeasible: which constraint is violated, as in "latency_ms 35 > 20"; None if none is.

    Raises:
        ConfigurationError: a field has another type.
    """

    fitness: float
    order: float
    orders: tuple[float, ...] = ()
    infeasible: str | None = None

    def __post_init__(self) -> None:
        orders: object = self.orders
        if not isinstance(orders, list | tuple):
            raise ConfigurationError(f"Judgement(orders={orders!r}): must be a tuple of numbers")
        for name in ("fitness", "order"):
            object.__setattr__(self, name, _number(getattr(self, name), name))
        object.__setattr__(self, "order", _sort_key(self.order))
        object.__setattr__(self, "orders", tuple(_sort_key(_number(order, "orders")) for order in orders))
        if not isinstance(self.infeasible, str | None):
            raise ConfigurationError(
                f"Judgement(infeasible={self.infeasible!r}): must be the violated constraint as text, or None"
            )


def _number(value: object, name: str) -> float:
    number = plain(value)
    fits = isinstance(number, float) or (isinstance(number, int) and abs(number) <= sys.float_info.max)
    if isinstance(number, bool) or not fits:
        raise ConfigurationError(f"Judgement({name}={value!r}): must be a number; use float(x) for an array")
    return float(number)


def _sort_key(order: float) -> float:
    return order if math.isfinite(order) else WORST


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Criteria:
    """The parts of a fitness that is made of several metrics.

    Attributes:
        values: what was judged, by metric.
        orders: as `Judgement.orders`.
        infeasible: as `Judgement.infeasible`.
    """

    values: Mapping[str, float] = field(default_factory=dict)
    orders: tuple[float, ...] = ()
    infeasible: str | None = None


class Objective(Protocol):
    """The goal of selection. A plug-in is a frozen dataclass, registered under `phyla.objectives`."""

    @property
    def goals(self) -> "tuple[Goal, ...]":
        """The metrics that it needs, each once, with the direction that is better; at least one."""
        ...

    @property
    def tradeoffs(self) -> "tuple[Goal, ...]":
        """The goals that span a Pareto front; empty where `order` alone says which trial is better."""
        ...

    @property
    def name(self) -> str:
        """Name of the fitness, for tables and axes."""
        ...

    @property
    def maximize(self) -> bool:
        """Whether a higher fitness is better."""
        ...

    @property
    def description(self) -> str:
        """What is selected for, in words."""
        ...

    def judge(self, values: Mapping[str, float]) -> Judgement:
        """Judge one trial by its metrics; all of `goals` are there, and may be nan or infinite."""
        ...


@dataclass(frozen=True, slots=True)
class _OneMetric:
    metric: str
    stop_at: float | None = field(default=None, metadata=UNLESS_NONE)

    maximize: ClassVar[bool]
    tradeoffs: "ClassVar[tuple[Goal, ...]]" = ()

    def __post_init__(self) -> None:
        check_metric(self.metric, type(self).__name__)
        at = self.stop_at
        if at is None:
            return
        if isinstance(at, bool) or not isinstance(at, int | float) or not math.isfinite(at):
            raise ConfigurationError(
                f"{type(self).__name__}({self.metric!r}, stop_at={at!r}): give the value, a finite number, at "
                "which the study has reached its goal"
            )
        object.__setattr__(self, "stop_at", float(at))

    @property
    def goals(self) -> "tuple[Goal, ...]":
        """Itself."""
        return (self,)  # type: ignore[return-value]  # Maximize and Minimize are all there are

    @property
    def name(self) -> str:
        """The metric."""
        return self.metric

    @property
    def description(self) -> str:
        """What is selected for, in words."""
        return f"{'maximize' if self.maximize else 'minimize'} {self.metric}"

    def order(self, fitness: float) -> float:
        """Return the sort key of a fitness: higher is better, nan and infinities are worst."""
        if not math.isfinite(fitness):
            return WORST
        return fitness if self.maximize else -fitness

    def judge(self, values: Mapping[str, float]) -> Judgement:
        """Judge one trial by the metric."""
        fitness = values[self.metric]
        return Judgement(fitness=fitness, order=self.order(fitness))


@final
@dataclass(frozen=True, slots=True)
class Maximize(_OneMetric):
    """Select for high values of a reported metric.

    Args:
        metric: the name under which `trial.report()` gives it.
        stop_at: the study is complete once a trial has this fitness, or more; trials that run then finish.

    Raises:
        ConfigurationError: the metric is not a name, or `stop_at` no finite number.
    """

    maximize = True


@final
@dataclass(frozen=True, slots=True)
class Minimize(_OneMetric):
    """Select for low values of a reported metric.

    Args:
        metric: the name under which `trial.report()` gives it.
        stop_at: the study is complete once a trial has this fitness, or less; trials that run then finish.

    Raises:
        ConfigurationError: the metric is not a name, or `stop_at` no finite number.
    """

    maximize = False


Goal: TypeAlias = Maximize | Minimize
"""One metric and the direction that is better."""


class Worth(TypedDict):
    """The fields of a trial and of a `Scored` that come from an objective."""

    fitness: float | None
    order: float | None
    criteria: Criteria | None


def judge_values(values: Mapping[str, float], objective: Objective) -> Judgement:
    """Return how an objective judges its metrics; `ConfigurationError` if it returns something else."""
    judgement: Any = objective.judge(values)
    wanted = len(objective.tradeoffs)
    if isinstance(judgement, Judgement) and len(judgement.orders) == wanted:
        return judgement
    as_many = f" with {wanted} orders, one for each of its tradeoffs" if wanted else " without orders"
    call = f"{type(objective).__name__}.judge() returned {judgement!r}"
    raise ConfigurationError(
        f"{call}; it must return Judgement{as_many if isinstance(judgement, Judgement) else ''}"
    )


def require_objective(objective: object) -> None:
    """Reject what is not an objective, and one whose properties have other types than those of `Objective`."""
    if isinstance(objective, str | type | Mapping) or not is_dataclass(objective):
        raise ConfigurationError(
            f"objective={objective!r}: give an objective, such as Maximize('accuracy') or Minimize('loss')"
        )
    _check_properties(objective, goals=tuple, tradeoffs=tuple, name=str, maximize=bool, description=str)
    checked: Any = objective
    if not checked.goals or not callable(getattr(checked, "judge", None)):
        needed = "function judge(values)" if checked.goals else "goals: name at least one metric that it needs"
        raise ConfigurationError(f"objective: {type(objective).__name__} has no {needed}")
    for goal in (*checked.goals, *checked.tradeoffs):
        _check_properties(goal, metric=str, maximize=bool)


def _check_properties(part: object, **wanted: type) -> None:
    for name, want in wanted.items():
        value = getattr(part, name, None)
        if not isinstance(value, want):
            raise ConfigurationError(f"objective: {name} of {part!r} is {value!r}; it must be a {want.__name__}")


def worth(values: Mapping[str, float], objective: Objective) -> Worth:
    """Return the score that an objective gives for its metrics."""
    judgement = judge_values(values, objective)
    if len(values) == 1 and not judgement.orders and judgement.infeasible is None:
        (value,) = values.values()
        if value == judgement.fitness or math.isnan(value):
            return Worth(fitness=judgement.fitness, order=judgement.order, criteria=None)
    criteria = Criteria(values=dict(values), orders=judgement.orders, infeasible=judgement.infeasible)
    return Worth(fitness=judgement.fitness, order=judgement.order, criteria=criteria)


def order_to_stop_at(objective: Objective) -> float | None:
    """Return the sort key at which a study has reached its goal; None without one."""
    at: float | None = getattr(objective, "stop_at", None)
    return None if at is None else direction(objective).order(at)


def direction(objective: Objective) -> Goal:
    """Return the goal that orders an objective's fitness by itself."""
    return _goal(objective.name, objective.maximize)


def _goal(metric: str, maximize: bool) -> Goal:
    return Maximize(metric) if maximize else Minimize(metric)


def exact(number: float) -> str:
    """Return a number of an objective's settings as text, short but never rounded."""
    short = f"{number:g}"
    return short if float(short) == number else repr(number).removesuffix(".0")


def check_metric(metric: object, kind: str) -> None:
    """Reject what is not the name of a metric."""
    if not isinstance(metric, str) or not metric:
        raise ConfigurationError(f'{kind}({metric!r}): name a reported metric, as in {kind}("accuracy")')


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """Display of an objective in tables and figures, read from a study's configuration without its code.

    Attributes:
        name: of the fitness.
        maximize: whether a higher fitness is better.
        description: what is selected for, in words.
        tradeoffs: the goals that span a Pareto front, in order; empty without one.
    """

    name: str
    maximize: bool
    description: str
    tradeoffs: tuple[Goal, ...] = ()

    @classmethod
    def of(cls, objective: Objective) -> "Aim":
        """Return the display of an objective."""
        return cls(
            name=objective.name,
            maximize=objective.maximize,
            description=objective.description,
            tradeoffs=objective.tradeoffs,
        )

    def to_json(self) -> JsonObject:
        """Return it as a study's configuration holds it."""
        tradeoffs = [{"metric": goal.metric, "maximize": goal.maximize} for goal in self.tradeoffs]
        return {**asdict(self), "tradeoffs": tradeoffs}

    @classmethod
    def from_config(cls, config: JsonObject) -> "Aim":
        """Read what `to_json` wrote."""
        raw: Any = config["aim"]
        return cls(**{**raw, "tradeoffs": tuple(_goal(**goal) for goal in raw["tradeoffs"])})
