"""StudyData and EvaluationData: snapshots of a study and of an evaluation, for figures and reports."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias, final

import numpy as np

from phyla.evaluation import Cell, GroupValues, Lag, SuiteOutline
from phyla.lineage import Schedule, Segment
from phyla.records import (
    Aim,
    Checkpoint,
    EvalEvent,
    JsonObject,
    Member,
    RunStart,
    StudyRecord,
    TimeSpent,
    TrialRecord,
)
from phyla.report.columns import Attempts, Trials, Waits, trained
from phyla.space.params import is_same
from phyla.strategies import first_front

Interval: TypeAlias = tuple[float, float]
"""Begin and end, in seconds since the epoch."""


@final
class Hyperparameter(NamedTuple):
    """How to draw one hyperparameter: as a number, on a log axis or not, or as a category, ordered or not."""

    name: str
    log: bool = False
    categories: tuple[Any, ...] | None = None
    ordered: bool = False

    @property
    def is_choice(self) -> bool:
        """Whether its values have no order."""
        return self.categories is not None and not self.ordered

    def place(self, value: Any) -> int | None:
        """Return the index of a value among the categories; None if it is not a category."""
        known = enumerate(self.categories or ())
        return next((index for index, category in known if is_same(category, value)), None)

    def values(self, params: Sequence[JsonObject]) -> Any:
        """Return its value in each of `params` as an array: number or index of the category; nan if missing."""
        raw = [assignment.get(self.name) for assignment in params]
        if self.categories is not None:
            places = {repr(value): self.place(value) for value in {repr(value): value for value in raw}.values()}
            raw = [places[repr(value)] for value in raw]
        return np.array(raw, dtype=float)


@final
@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class StudyData:
    """A snapshot of one study, from which figures and the report are made.

    `path_of` returns the path of a checkpoint by name; None if it was deleted. `best_trial` is the id of the best
    trial as the study names it; None takes the one with the best score. `expected` is its expected fitness, by a
    final or an estimate; None where scores are exact, or there are too few to tell, which `unclear` distinguishes.
    """

    study: StudyRecord
    members: Sequence[Member]
    trials: Trials
    attempts: Attempts
    aim: Aim
    path_of: Callable[[str], str | None] = lambda name: None
    damaged: Sequence[Checkpoint] = ()
    time: TimeSpent = field(default_factory=TimeSpent)  # of its workers
    evaluating: Attempts = field(default_factory=lambda: Attempts.of(()))
    starts: Sequence[RunStart] = ()
    best_trial: int | None = None
    expected: float | None = None
    unclear: bool = False

    def __repr__(self) -> str:
        return f"<StudyData of {self.study.name!r}: {len(self.members):,} members, {len(self.trials):,} trials>"

    @cached_property
    def winner(self) -> int | None:
        """Index of the best completed trial; of those with the best finite fitness the earliest of equals."""
        order = self.trials.order
        if self.best_trial is not None and self.best_trial in self.trials.id:
            return int(np.flatnonzero(self.trials.id == self.best_trial)[0])
        if not np.isfinite(order).any():
            return None
        best = np.flatnonzero(order == order.max())
        # As in `Lineage.best`, the next goal breaks ties.
        goals = np.nan_to_num(self.trials.orders[best], nan=-math.inf).tolist()
        return int(best[max(range(len(best)), key=lambda at: (goals[at], -at))])

    @cached_property
    def best(self) -> TrialRecord | None:
        """The winner."""
        return None if self.winner is None else self.trials.records([self.winner])[0]

    @cached_property
    def elites(self) -> dict[int, int]:
        """Index of each member's trial with the best finite fitness; the earliest of equals."""
        trials = self.trials
        good = np.flatnonzero(np.isfinite(trials.order))
        good = good[np.argsort(-trials.order[good], kind="stable")]
        members, first = np.unique(trials.member[good], return_index=True)
        return dict(zip(members.tolist(), good[first].tolist(), strict=True))

    @cached_property
    def front(self) -> list[TrialRecord]:
        """The Pareto front of all completed trials, best in the first goal first; empty without trade-offs."""
        orders = self.trials.orders
        usable = np.flatnonzero(np.isfinite(self.trials.order) & ~np.isnan(orders).any(axis=1))
        if not self.aim.tradeoffs or not len(usable):
            return []
        return [*self.trials.records(usable[first_front(orders[usable])])]

    @cached_property
    def winner_path(self) -> list[int]:
        """Indices of the trials that trained the winner's weights, root first; empty without a winner."""
        path: list[int] = []
        at = -1 if self.winner is None else self.winner
        while at >= 0:
            path.append(at)
            at = int(self.trials.parent[at])
        return path[::-1]

    @cached_property
    def schedule(self) -> Schedule | None:
        """The winner's schedule."""
        trials, path = self.trials, self.winner_path
        # An imported checkpoint was not trained here.
        path = path[1:] if len(path) > 1 and trials.start[path[0]] == trials.end[path[0]] else path
        columns = (column[path].tolist() for column in (trials.start, trials.end, trials.id, trials.member))
        rows = zip(*columns, path, strict=True)
        segments = [
            Segment(start, end, trials.params[at], trial, member) for start, end, trial, member, at in rows
        ]
        return Schedule(tuple(segments)) if segments else None

    @property
    def best_age(self) -> int | None:
        """Age of the winner's weights: the steps that trained them in this study; None without a winner."""
        return None if self.best is None else self.best.age + trained(self.best)

    @cached_property
    def hyperparameters(self) -> list[Hyperparameter]:
        """The hyperparameters that completed trials had, in the order of the space, or of appearance."""
        return hyperparameters(self.study, self.trials.params)

    @property
    def total_steps(self) -> int:
        """Total steps of all members, including trials that a rule stopped."""
        return int((self.trials.end - self.trials.start).sum() + self.trials.stopped[:, 1].sum())

    @cached_property
    def last_moment(self) -> float:
        """The latest time in the records, in seconds since the epoch; running attempts are drawn up to it."""
        attempts = self.attempts
        known = np.where(np.isnan(attempts.end), attempts.begin, attempts.end)
        last = float(known.max(initial=self.trials.last_ended))
        return last if math.isfinite(last) else self.study.created_at

    @property
    def ends(self) -> Any:
        """When each attempt ended; the last moment for running attempts."""
        return np.where(np.isnan(self.attempts.end), self.last_moment, self.attempts.end)

    @property
    def wall_seconds(self) -> float | None:
        """Time from the first claim to the end of the last attempt; None without attempts."""
        return float(self.ends.max() - self.attempts.begin.min()) if len(self.attempts) else None


def hyperparameters(study: StudyRecord, assignments: Iterable[JsonObject]) -> list[Hyperparameter]:
    """Return the hyperparameters that trials had, in the order of the space, or of appearance."""
    space: Any = study.config.get("space") or {}
    described = {str(entry["name"]): entry for entry in space.get("parameters", ())}
    distinct = {id(params): params for params in assignments}.values()
    names = dict.fromkeys([*described, *(name for params in distinct for name in params)])
    values = {name: [params[name] for params in distinct if name in params] for name in names}
    return [_hyperparameter(name, used, described.get(name, {})) for name, used in values.items() if used]


def _hyperparameter(name: str, used: Sequence[Any], entry: Mapping[str, Any]) -> Hyperparameter:
    numbers = [value for value in used if isinstance(value, (int, float)) and not isinstance(value, bool)]
    kind = entry.get("kind")
    if len(numbers) == len(used) and kind not in ("choice", "ordinal"):
        return Hyperparameter(name, log=entry.get("log") is True and min(numbers) > 0)
    known = list(entry.get("values", ()))
    for value in used:
        if not any(is_same(value, other) for other in known):
            known.append(value)
    return Hyperparameter(name, categories=tuple(known), ordered=kind == "ordinal")


@final
@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class EvaluationData:
    """A snapshot of the evaluation of one run; `members` maps the trials of a study to their members."""

    run: StudyRecord
    suites: Sequence[SuiteOutline]
    cells: Sequence[Cell]
    values: Sequence[GroupValues]
    waits: Mapping[str, Waits]
    events: Sequence[EvalEvent]
    lag: Sequence[Lag]
    members: Mapping[int, int]
    now: float

    def __repr__(self) -> str:
        return f"<EvaluationData of {self.run.name!r}: {len(self.checkpoints):,} checkpoints>"

    @cached_property
    def checkpoints(self) -> list[Checkpoint]:
        """The checkpoints in the order in which they were registered."""
        checkpoints = {cell.seen.id: cell.seen for cell in self.cells}
        return sorted(checkpoints.values(), key=lambda seen: seen.number)

    def suite(self, name: str) -> SuiteOutline:
        """Return a suite by name; an outline with only the name if the suite was removed."""
        return next((suite for suite in self.suites if suite.name == name), SuiteOutline(name=name))

    def values_of(self, suite: str) -> list[GroupValues]:
        """Return the aggregates of a suite by number of the checkpoint; repetitions are ignored."""
        results = [result for result in self.values if result.group.suite == suite and result.group.replicate == 0]
        return sorted(results, key=lambda result: result.seen.number)
