"""StudyData and EvaluationData: the records of a study, or of an evaluation, and what figures draw of them."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias, final

import numpy as np

from phyla.evaluation import Cell, GroupValues, Lag, SuiteOutline
from phyla.lineage import Lineage, Schedule
from phyla.records import (
    Aim,
    Attempt,
    Checkpoint,
    EvalEvent,
    Group,
    JobState,
    Member,
    Phase,
    Start,
    StudyRecord,
    TrialRecord,
)
from phyla.space.params import is_same
from phyla.strategies import front_of
from phyla.words import duration

Interval: TypeAlias = tuple[float, float]
"""Begin and end, in seconds since the epoch."""


@final
class Ran(NamedTuple):
    """When a worker ran an eval task, in seconds since the epoch."""

    begin: float
    end: float
    worker: str = ""


PHASES = (Phase.TRAINING, Phase.LOADING, Phase.SAVING, Phase.EVALUATING, Phase.CONTROL, Phase.WAITING)
"""All phases, in the order in which they are shown."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSpent:
    """Seconds by phase, over the `timed` attempts of those that have `ended`."""

    seconds: Mapping[Phase, float]
    timed: int
    ended: int

    @property
    def total_s(self) -> float:
        """Seconds of all phases."""
        return sum(self.seconds.values())

    def words(self) -> str:
        """Return the shares of the phases, largest first: `training 91 %, saving 6 %, loading 3 %`."""
        if not self.total_s:
            return "not known"
        shares = sorted(((100 * s / self.total_s, p) for p, s in self.seconds.items() if s), reverse=True)
        told = ", ".join(f"{phase} {share:.0f} %" if share >= 0.5 else f"{phase} < 1 %" for share, phase in shares)
        return f"{told} of {duration(self.total_s)}"


def time_spent(attempts: Sequence[Attempt], evaluating: Sequence[Ran] = ()) -> TimeSpent:
    """Add up where the time of a study's attempts went; those that were released or crashed have no times.

    `evaluating` says when each eval task ran, on any worker, and gives the time of evaluation if there are any:
    attempts know only of the eval tasks that training workers ran.
    """
    known = [attempt.timings for attempt in attempts if attempt.timings is not None]
    seconds = {phase: sum(timings.get(phase.value, 0.0) for timings in known) for phase in PHASES}
    if evaluating:
        seconds[Phase.EVALUATING] = sum(max(0.0, one.end - one.begin) for one in evaluating)
    ended = sum(attempt.ended_at is not None for attempt in attempts)
    return TimeSpent(seconds=seconds, timed=len(known), ended=ended)


@final
class Hyperparameter(NamedTuple):
    """How one hyperparameter is drawn: by number, on a log axis or not, or by category, ordered or not."""

    name: str
    log: bool = False
    categories: tuple[Any, ...] | None = None
    ordered: bool = False

    @property
    def is_choice(self) -> bool:
        """Whether its values have no order."""
        return self.categories is not None and not self.ordered

    def place(self, value: Any) -> int | None:
        """Return the place of a value among the categories; None if it is not one of them."""
        known = enumerate(self.categories or ())
        return next((index for index, category in known if is_same(category, value)), None)

    def values(self, trials: Sequence[TrialRecord]) -> Any:
        """Return its value in each trial as an array of numbers, of categories their places; nan without one."""
        raw = [trial.params.get(self.name) for trial in trials]
        if self.categories is not None:
            places = {repr(value): self.place(value) for value in {repr(value): value for value in raw}.values()}
            raw = [places[repr(value)] for value in raw]
        return np.array(raw, dtype=float)


@final
class Columns(NamedTuple):
    """Completed training trials by id, an array for each thing.

    `parent` and `jump` are places in these arrays, -1 for none; `progress` is the member's clock at the end of the
    trial, `start` and `end` the steps of the weights; `fitness` is nan unless it is finite and the trial feasible.
    """

    member: Any
    progress: Any
    start: Any
    end: Any
    parent: Any
    jump: Any
    fitness: Any


@final
@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class StudyData:
    """The records of one study, as they were at one moment; `checkpoint_paths` are those of what is kept."""

    study: StudyRecord
    members: Sequence[Member]
    trials: Sequence[TrialRecord]
    attempts: Sequence[Attempt]
    aim: Aim
    checkpoint_paths: Mapping[str, str] = field(default_factory=dict)
    damaged: Sequence[Checkpoint] = ()
    evaluating: Sequence[Ran] = ()
    starts: Sequence[Start] = ()

    def __repr__(self) -> str:
        return f"<StudyData of {self.study.name!r}: {len(self.members):,} members, {len(self.trials):,} trials>"

    @cached_property
    def lineage(self) -> Lineage:
        """The tree of its training trials."""
        return Lineage(self.trials)

    @cached_property
    def by_member(self) -> dict[int, list[TrialRecord]]:
        """Training trials of every member, in order; members without any are there too."""
        found: dict[int, list[TrialRecord]] = {index: [] for index in range(self.study.population_size)}
        for trial in self.lineage:
            found.setdefault(trial.member, []).append(trial)
        return found

    @cached_property
    def best(self) -> TrialRecord | None:
        """The winner: the completed trial with the best finite fitness."""
        return self.lineage.best()

    @cached_property
    def completed(self) -> list[TrialRecord]:
        """Completed training trials, by id."""
        return [trial for trial in self.lineage if trial.state is JobState.COMPLETED]

    @cached_property
    def columns(self) -> Columns:
        """The completed training trials as arrays."""
        places: dict[int | None, int] = {}
        clock: dict[int, int] = {}
        rows, fitness = [], []
        for trial in self.completed:
            steps = trained(trial)
            now = clock[trial.member] = max(clock.get(trial.member, 0), trial.age) + steps
            origin = places.get(trial.parent, -1), places.get(trial.jump_from, -1)
            rows.append((trial.member, now, trial.start_step, trial.start_step + steps, *origin))
            fitness.append(finite_fitness(trial))
            places[trial.id] = len(places)
        member, progress, start, end, parent, jump = np.array(rows, dtype=int).reshape(-1, 6).T
        return Columns(member, progress, start, end, parent, jump, np.array(fitness, dtype=float))

    @cached_property
    def scored(self) -> list[TrialRecord]:
        """Completed training trials that are feasible and have a finite fitness, by id."""
        return [trial for trial in self.completed if finite_fitness(trial) is not None]

    @cached_property
    def front(self) -> list[TrialRecord]:
        """The Pareto front of all completed trials, best in the first goal first; empty without trade-offs."""
        return front_of(self.completed) if self.aim.tradeoffs else []

    @cached_property
    def winner_path(self) -> tuple[TrialRecord, ...]:
        """The trials that trained the winner's weights, root first; empty while there is no winner."""
        return self.lineage.ancestry(self.best.id) if self.best else ()

    @cached_property
    def schedule(self) -> Schedule | None:
        """The winner's schedule."""
        return self.lineage.schedule(self.best.id) if self.best else None

    @property
    def best_age(self) -> int | None:
        """Age of the winner's weights: the steps that trained them in this study; None without a winner."""
        return None if self.best is None else self.best.age + trained(self.best)

    @cached_property
    def hyperparameters(self) -> list[Hyperparameter]:
        """The hyperparameters that trials had, in the order of the space, or of appearance."""
        space: Any = self.study.config.get("space") or {}
        described = {str(entry["name"]): entry for entry in space.get("parameters", ())}
        names = dict.fromkeys([*described, *(name for trial in self.lineage for name in trial.params)])
        values = {name: [t.params[name] for t in self.lineage if name in t.params] for name in names}
        return [_hyperparameter(name, used, described.get(name, {})) for name, used in values.items() if used]

    @cached_property
    def counts(self) -> Counter[JobState]:
        """How many training trials are in each state."""
        return Counter(trial.state for trial in self.lineage)

    @property
    def total_steps(self) -> int:
        """Steps that all members together have spent."""
        return sum(map(trained, self.lineage))

    @cached_property
    def last_moment(self) -> float:
        """The latest time the records know of, in seconds since the epoch; what still runs is drawn up to it."""
        ended = [one.ended_at or one.claimed_at for one in self.attempts]
        ended += [trial.ended_at for trial in self.trials if trial.ended_at is not None]
        return max(ended, default=self.study.created_at)

    @property
    def running(self) -> list[Interval]:
        """When each attempt ran."""
        now = self.last_moment
        return [(one.claimed_at, now if one.ended_at is None else one.ended_at) for one in self.attempts]

    @property
    def wall_seconds(self) -> float | None:
        """Time from the first claim to the end of the last attempt; None without any."""
        ran = self.running
        return max(end for _, end in ran) - min(begin for begin, _ in ran) if ran else None

    @cached_property
    def time(self) -> TimeSpent:
        """Where the time of its workers went."""
        return time_spent(self.attempts, self.evaluating)


def trained(trial: TrialRecord) -> int:
    """Return the steps that a completed trial trained; 0 for another."""
    done = trial.state is JobState.COMPLETED and trial.reached_step is not None
    return max(0, (trial.reached_step or 0) - trial.start_step) if done else 0


def finite_fitness(trial: TrialRecord) -> float | None:
    """Return the fitness of a completed trial if it is a finite number and the trial is feasible."""
    feasible = trial.criteria is None or not trial.criteria.infeasible
    known = trial.fitness is not None and math.isfinite(trial.fitness)
    return trial.fitness if trial.state is JobState.COMPLETED and feasible and known else None


def _hyperparameter(name: str, used: Sequence[Any], entry: Mapping[str, Any]) -> Hyperparameter:
    numbers = [value for value in used if isinstance(value, (int, float)) and not isinstance(value, bool)]
    kind = entry.get("kind")
    if len(numbers) == len(used) and kind not in ("choice", "ordinal"):
        return Hyperparameter(name, log=bool(entry.get("log")) and min(numbers) > 0)
    known = list(entry.get("values", ()))
    for value in used:
        if not any(is_same(value, other) for other in known):
            known.append(value)
    return Hyperparameter(name, categories=tuple(known), ordered=kind == "ordinal")


@final
@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class EvaluationData:
    """The evaluation of one run, as it was at one moment; `members` are those of a study's trials."""

    run: StudyRecord
    suites: Sequence[SuiteOutline]
    cells: Sequence[Cell]
    values: Sequence[GroupValues]
    groups: Sequence[Group]
    events: Sequence[EvalEvent]
    lag: Sequence[Lag]
    members: Mapping[int, int]
    now: float
    state: str

    def __repr__(self) -> str:
        return f"<EvaluationData of {self.run.name!r}: {len(self.checkpoints):,} checkpoints>"

    @cached_property
    def checkpoints(self) -> list[Checkpoint]:
        """The checkpoints that are shown, in the order in which they were seen."""
        found = {cell.seen.id: cell.seen for cell in self.cells}
        return sorted(found.values(), key=lambda seen: seen.number)

    def suite(self, name: str) -> SuiteOutline:
        """Return a suite by name; of one that was removed only the name is known."""
        return next((suite for suite in self.suites if suite.name == name), SuiteOutline(name=name))

    def values_of(self, suite: str) -> list[GroupValues]:
        """Return the aggregates of a suite by number of the checkpoint; repetitions are left out."""
        found = [one for one in self.values if one.group.suite == suite and one.group.replicate == 0]
        return sorted(found, key=lambda one: one.seen.number)
