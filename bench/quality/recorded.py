"""Recorded curves of populations that train in step, and hyperparameters along their best lineages."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import lockstep
import numpy as np
from lockstep import Array, Arrays, Rows, Task, Way, constant
from schedules import sampled, search

from phyla.strategies import Strategy


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A line of a figure.

    Attributes:
        task: what it trains.
        strategy: makes the decisions; a name of a sampler of Optuna's trains one member after the other.
        decay: factor of the learning rates.
    """

    task: Task
    strategy: Strategy | str
    decay: lockstep.Decay = constant


@dataclass
class Record:
    """What became of a contender: at each interval, the best score so far of each seed.

    Attributes:
        steps: of a member.
        values: what the best score so far is worth, one a seed.
        weights: of the members of the first seed.
        paths: by hyperparameter, its values along the lineage of the member that is best now, one row a seed.
        finals: what the studies came to.
    """

    steps: list[int] = field(default_factory=list)
    values: list[Array] = field(default_factory=list)
    weights: list[Array] = field(default_factory=list)
    paths: dict[str, Array] = field(default_factory=dict)
    finals: list[dict[str, Any]] = field(default_factory=list)
    _best: Array = field(default_factory=lambda: np.zeros(0))
    _chosen: Any = None

    def watch(self, task: Task, followed: Sequence[str] = ()) -> Task:
        """Return the task, of which everything that is scored is also noted here."""
        sign, interval = (1 if task.maximize else -1), task.intervals[1]

        def fresh(world: Arrays, rng: np.random.Generator, count: int) -> Arrays:
            paths = {f"path of {name}": np.full((count, task.steps // interval), np.nan) for name in followed}
            return {**task.fresh(world, rng, count), **paths}

        def train(state: Arrays, rows: Rows) -> Arrays:
            after = task.train(state, rows)
            for name in followed:
                path = state[f"path of {name}"].copy()
                path[np.arange(len(path)), (rows.ages // interval).astype(int)] = rows.rate(name, 0)
                after[f"path of {name}"] = path
            return after

        def score(state: Arrays, rows: Rows) -> Array:
            scores = task.score(state, rows)
            self._note(task, state, rows, np.nan_to_num(sign * scores, nan=-np.inf, neginf=-np.inf))
            for name in followed:
                self.paths[name] = state[f"path of {name}"][self._chosen]
            return scores

        return replace(task, fresh=fresh, train=train, score=score)

    def _note(self, task: Task, state: Arrays, rows: Rows, orders: Array) -> None:
        count = int(rows.seeds.max()) + 1
        chosen = np.array([_best_of(orders, rows.seeds == place) for place in range(count)])
        picked = {name: values[chosen] for name, values in state.items()}
        values = task.value(picked, replace(rows, seeds=rows.seeds[chosen]))
        if not self.steps:
            self._best = np.full(count, -np.inf)
        better = orders[chosen] > self._best
        self._best = np.where(better, orders[chosen], self._best)
        self.values.append(np.where(better, values, self.values[-1] if self.values else values))
        self.steps.append((self.steps[-1] if self.steps else 0) + rows.count)
        self.weights.append(state["w"][rows.seeds == 0])
        self._chosen = chosen


def _best_of(orders: Array, mine: Any) -> int:
    places = np.flatnonzero(mine)
    return int(places[orders[places].argmax()])


def record(contender: Contender, seeds: Sequence[int], followed: Sequence[str] = ()) -> Record:
    """Train a contender on all seeds."""
    found, strategy = Record(), contender.strategy
    task = found.watch(contender.task, followed)
    with np.errstate(all="ignore"):
        if isinstance(strategy, str):
            found.finals = sampled(task, Way(strategy=search(task), decay=constant), seeds, strategy)
        else:
            found.finals = lockstep.run(task, Way(strategy=strategy, decay=contender.decay), seeds)
    return found
