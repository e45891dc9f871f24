"""Baselines without evolution: random search and grid search."""

import itertools
import math
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import numpy as np

from phyla.errors import ConfigurationError
from phyla.records import JsonObject, Member
from phyla.space import Scalar, Space, run_check
from phyla.space.params import as_scalar, flatten
from phyla.strategies.checks import check_steps
from phyla.strategies.fitness import LAST, FitnessRule, FromSuite
from phyla.strategies.starts import end_if_broken, end_if_stopped, fresh, proceed, sampled, steps_to_line
from phyla.strategies.strategy import Context, Decision, Independent, Population, Strategy
from phyla.validation import MOST_MEMBERS, check, setting_error


@final
@dataclass(frozen=True, slots=True)
class RandomSearch(Independent):
    """Every member trains to the end with hyperparameters drawn from the priors: the baseline at equal steps.

    A trial that breaks is tried again: with a fresh draw at the start, later with the same hyperparameters and
    another seed. One that a stopping rule ends, ends its member. Source: Bergstra and Bengio 2012, Random search
    for hyper-parameter optimization, section 2.

    Args:
        members: number of members, each with hyperparameters of its own.
        total_steps: steps each member spends in all.
        steps_per_trial: steps of one trial, after which there are a checkpoint and a score; None makes one
            trial of the whole training.
        fitness: where the fitness of a trial comes from: its reports, or a suite (`FromSuite`).
    """

    members: int
    total_steps: int
    steps_per_trial: int | None = None
    fitness: FitnessRule | FromSuite = LAST
    pareto = True

    def __post_init__(self) -> None:
        check(self, members=1)
        check_steps(self)

    def decide(self, member: Member, population: Population, context: Context) -> Decision:
        steps = steps_to_line(member.progress, self.steps_per_trial, self.total_steps)
        if member.head is None:
            return end_if_stopped(member) or sampled(member, steps, context)
        return end_if_broken(member) or proceed(member, steps)


@final
@dataclass(frozen=True, slots=True)
class GridSearch(Strategy):
    """Every combination of the given values is trained to the end by one member.

    Parameters that the grid does not name start at their `initial`, else drawn. A trial that breaks is tried again
    with another seed, twice; one that a stopping rule ends, ends its member.

    Args:
        grid: values by name of the parameter, flat or nested as in the space, which has to allow all combinations.
        total_steps: steps each member spends in all.
        steps_per_trial: as for `RandomSearch`.
        fitness: where the fitness of a trial comes from: its reports, or a suite (`FromSuite`).
    """

    grid: Mapping[str, Any]
    total_steps: int
    steps_per_trial: int | None = None
    fitness: FitnessRule | FromSuite = LAST
    pareto = True

    def __post_init__(self) -> None:
        check_steps(self)
        grid: object = self.grid
        if not isinstance(grid, Mapping):
            raise setting_error(self, "grid", "pass values by name, as in {'lr': [0.1, 0.01]}")
        if not grid:
            raise setting_error(self, "grid", "nothing to search; use RandomSearch(members=1, ...)")
        grid = run_check(flatten, grid, "GridSearch(grid=...)")
        for name, values in grid.items():
            if isinstance(values, str) or not isinstance(values, Sequence) or not values:
                raise ConfigurationError(
                    f"GridSearch({name}={values!r}): give a list of at least one value, as in [0.1, 0.01]"
                )
        count = math.prod(len(values) for values in grid.values())
        if count > MOST_MEMBERS:
            raise ConfigurationError(
                f"GridSearch: the grid has {count:,} combinations, one for each member; at most {MOST_MEMBERS:,}"
            )
        object.__setattr__(self, "grid", {name: _distinct(name, values) for name, values in grid.items()})

    @property
    def points(self) -> tuple[JsonObject, ...]:
        """The combinations, in the order of the members; the last parameter varies fastest."""
        return tuple(
            dict(zip(self.grid, values, strict=True)) for values in itertools.product(*self.grid.values())
        )

    @property
    def population_size(self) -> int:
        return len(self.points)

    def check_space(self, space: Space) -> None:
        for index, point in enumerate(self.points):
            _complete_point(index, point, space, np.random.default_rng(0))

    def decide(self, member: Member, population: Population, context: Context) -> Decision:
        steps = steps_to_line(member.progress, self.steps_per_trial, self.total_steps)
        stop = end_if_broken(member)
        if stop is not None or member.head is not None:
            return stop or proceed(member, steps)
        point = self.points[member.index]
        return fresh(member, _complete_point(member.index, point, context.space, context.rng), steps, point=point)


def _distinct(name: str, values: Sequence[Any]) -> tuple[Scalar, ...]:
    """Return the values of one parameter of a grid; reject duplicates."""
    distinct: dict[tuple[bool, Scalar], Scalar] = {}  # since True is 1 to Python
    for item in values:
        value = as_scalar(item, f"GridSearch({name}=...): a value")
        if (isinstance(value, bool), value) in distinct:
            why = f"{value!r} is listed twice; remove one"
            raise ConfigurationError(f"GridSearch({name}={reprlib.repr(list(values))}): {why}")
        distinct[isinstance(value, bool), value] = value
    return tuple(distinct.values())


def _complete_point(index: int, point: JsonObject, space: Space, rng: np.random.Generator) -> JsonObject:
    """Return a combination completed by the parameters that it omits."""
    where = f"GridSearch(grid=...): combination {index}, {point!r}"
    run_check(space.check_part, point, where)
    started = Space(space.parameters, constraints=space.constraints, initial=[point])
    return run_check(partial(started.sample, rng), 0, where)
