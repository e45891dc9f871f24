"""An objective that counts only where constraints hold."""

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass, replace
from typing import final

from phyla.errors import ConfigurationError
from phyla.records.objective import WORST, Goal, Judgement, Maximize, Minimize, Objective, exact

_SIGNS: dict[str, tuple[Callable[[float, float], bool], str]] = {
    "<=": (operator.le, ">"),
    ">=": (operator.ge, "<"),
    "<": (operator.lt, ">="),
    ">": (operator.gt, "<="),
}
_CONSTRAINT = re.compile(r"([^<>=!]*[^<>=!\s])\s*(<=|>=|<|>)\s*([^<>=!]+)")
_EXAMPLE = "write a metric, one of <=, >=, < and >, and a number, as in 'latency_ms <= 20'"


@final
@dataclass(frozen=True, slots=True)
class Constraint:
    """A bound on a metric.

    Attributes:
        metric: name of the metric.
        sign: `<=`, `>=`, `<` or `>`.
        bound: finite, in units of the metric.
    """

    metric: str
    sign: str
    bound: float

    @classmethod
    def parse(cls, text: object) -> "Constraint":
        """Read a constraint as it is written, such as "latency_ms <= 20".

        Raises:
            ConfigurationError: it is none; the message shows one.
        """
        read = _CONSTRAINT.fullmatch(text.strip()) if isinstance(text, str) else None
        bound = math.nan if read is None else _number(read[3])
        if read is None or not math.isfinite(bound):
            raise ConfigurationError(f"constraint {text!r}: {_EXAMPLE}")
        return cls(read[1], read[2], bound)

    @property
    def goal(self) -> Goal:
        """The direction in which the metric leaves the bound behind."""
        return Minimize(self.metric) if self.sign.startswith("<") else Maximize(self.metric)

    def violation(self, value: float) -> str | None:
        """Return how a value violates the constraint, as in "latency_ms 35 > 20"; None if it does not."""
        holds, opposite = _SIGNS[self.sign]
        if holds(value, self.bound):
            return None
        if math.isnan(value):
            return f"{self.metric} nan, not {self}"
        number = f"{value:g}"
        if number == f"{self.bound:g}":  # as rounded
            number = exact(value)
        return f"{self.metric} {number} {opposite} {exact(self.bound)}"

    def __str__(self) -> str:
        return f"{self.metric} {self.sign} {exact(self.bound)}"


@final
@dataclass(frozen=True, slots=True)
class Constrained:
    """An objective that counts only where all constraints hold.

    A trial that violates one is *infeasible*: it never donates and is never the best, and all infeasible trials
    are equally bad. A member that is infeasible may take over a feasible one. nan satisfies no constraint.

    Args:
        objective: what is selected for among feasible trials: any other objective.
        subject_to: constraints, each a metric, a comparison and a number, as in "latency_ms <= 20"; one of
            `<=`, `>=`, `<`, `>`. The metrics have to be reported like that of the objective.

    Raises:
        ConfigurationError: a constraint cannot be read, or two can never hold together.
    """

    objective: Objective
    subject_to: Sequence[str]

    def __post_init__(self) -> None:
        given_objective: object = self.objective
        if isinstance(given_objective, type) or not is_dataclass(given_objective):
            raise ConfigurationError(
                f"Constrained({self.objective!r}, ...): give an objective first, as in "
                "Constrained(Maximize('accuracy'), subject_to=['latency_ms <= 20'])"
            )
        texts = (self.subject_to,) if isinstance(self.subject_to, str) else tuple(self.subject_to)
        if not texts:
            raise ConfigurationError(f"Constrained(subject_to={self.subject_to!r}): {_EXAMPLE}")
        read = [Constraint.parse(text) for text in texts]
        for low in (constraint for constraint in read if constraint.sign.startswith(">")):
            for high in (
                constraint
                for constraint in read
                if constraint.sign.startswith("<") and constraint.metric == low.metric
            ):
                touch = low.bound == high.bound and (low.sign, high.sign) == (">=", "<=")
                if low.bound >= high.bound and not touch:
                    raise ConfigurationError(f"Constrained: {low} and {high} can never hold together")
        object.__setattr__(self, "subject_to", tuple(map(str, texts)))

    @property
    def constraints(self) -> tuple[Constraint, ...]:
        """The constraints, as read."""
        return tuple(Constraint.parse(text) for text in self.subject_to)

    @property
    def goals(self) -> tuple[Goal, ...]:
        """The objective's goals, and the metrics of the constraints."""
        goals = {goal.metric: goal for goal in self.objective.goals}
        for constraint in self.constraints:
            goals.setdefault(constraint.metric, constraint.goal)
        return tuple(goals.values())

    @property
    def tradeoffs(self) -> tuple[Goal, ...]:
        """The objective's."""
        return self.objective.tradeoffs

    @property
    def stop_at(self) -> float | None:
        """The objective's; an infeasible trial does not reach it."""
        return getattr(self.objective, "stop_at", None)

    @property
    def name(self) -> str:
        """The objective's."""
        return self.objective.name

    @property
    def maximize(self) -> bool:
        """The objective's."""
        return self.objective.maximize

    @property
    def description(self) -> str:
        """What is selected for, in words."""
        return f"{self.objective.description}, subject to {' and '.join(map(str, self.constraints))}"

    def judge(self, values: Mapping[str, float]) -> Judgement:
        """Judge one trial: as the objective does, or infeasible."""
        judgement = self.objective.judge(values)
        violations = [constraint.violation(values[constraint.metric]) for constraint in self.constraints]
        wrong = [judgement.infeasible, *violations]
        why = " and ".join(text for text in wrong if text)
        return replace(judgement, order=WORST, infeasible=why) if why else judgement


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
