"""StudyData: the records of one study, and what its figures share."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, final

from phyla.lineage import Lineage, Schedule
from phyla.records import Aim, Attempt, Checkpoint, JobState, Json, Member, StudyRecord, TrialRecord
from phyla.report.times import Interval, TimeSpent, time_spent
from phyla.strategies import front_of

LOG_RATIO = 50
"""Positive values that span more than this get a log axis if the space does not say whether they are."""


class Spent(NamedTuple):
    """Steps that a member had spent before a trial and after it; the end is None unless it completed."""

    start: int
    end: int | None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Hyperparameter:
    """How one hyperparameter is drawn.

    Attributes:
        name: its flat name.
        log: whether its axis is logarithmic.
        categories: its values in order, if it is drawn by category; else None.
        ordered: whether the order of the categories means something.
    """

    name: str
    log: bool
    categories: tuple[Json, ...] | None
    ordered: bool = False

    def place(self, value: Json) -> int | None:
        """Return the place of a value among the categories; None if it is not one of them."""
        known = enumerate(self.categories or ())
        return next((index for index, category in known if same(category, value)), None)


@final
@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class StudyData:
    """The records of one study, as they were at one moment.

    Attributes:
        study: the study.
        members: its members.
        trials: all its trials.
        attempts: all its attempts.
        aim: what it selects for.
        checkpoint_paths: where checkpoints are, by name; None where that is not known.
        damaged: checkpoints whose files are not what was committed.
        evaluating: when each eval task of the study ran.
        now: when the records were read, in seconds since the epoch; what still runs is drawn up to it.
    """

    study: StudyRecord
    members: Sequence[Member]
    trials: Sequence[TrialRecord]
    attempts: Sequence[Attempt]
    aim: Aim
    checkpoint_paths: Mapping[str, str] | None = None
    damaged: Sequence[Checkpoint] = ()
    evaluating: Sequence[Interval] = ()
    now: float | None = None

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
    def spent(self) -> dict[int, Spent]:
        """Place of every training trial on its member's own clock, by the trial's id."""
        found: dict[int, Spent] = {}
        for trials in self.by_member.values():
            clock = 0
            for trial in trials:
                end = None
                if trial.state is JobState.COMPLETED and trial.reached_step is not None:
                    end = clock + max(0, trial.reached_step - trial.start_step)
                found[trial.id] = Spent(clock, end)
                clock = clock if end is None else end
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
        best = self.best
        return None if best is None else best.age + max(0, (best.reached_step or 0) - best.start_step)

    @cached_property
    def hyperparameters(self) -> list[Hyperparameter]:
        """The hyperparameters in the order of the space, or of appearance."""
        space = self.study.config.get("space")
        entries = space.get("parameters") if isinstance(space, Mapping) else None
        listed = entries if isinstance(entries, Sequence) and not isinstance(entries, str) else ()
        described = {str(entry.get("name")): entry for entry in listed if isinstance(entry, Mapping)}
        values: dict[str, list[Json]] = {name: [] for name in described}
        for trial in self.lineage:
            for name, value in trial.params.items():
                values.setdefault(name, []).append(value)
        return [_hyperparameter(name, seen, described.get(name, {})) for name, seen in values.items() if seen]

    @cached_property
    def scored(self) -> list[TrialRecord]:
        """Completed training trials that are feasible and have a finite fitness, by id."""
        return [trial for trial in self.completed if finite_fitness(trial) is not None]

    @cached_property
    def counts(self) -> Counter[JobState]:
        """How many training trials are in each state."""
        return Counter(trial.state for trial in self.lineage)

    @property
    def total_steps(self) -> int:
        """Steps that all members together have spent."""
        last = [trials[-1] for trials in self.by_member.values() if trials]
        return sum(self.spent[trial.id].end or self.spent[trial.id].start for trial in last)

    @property
    def last_moment(self) -> float:
        """The latest time the records know of, in seconds since the epoch."""
        if self.now is not None:
            return self.now
        ended = [one.ended_at or one.claimed_at for one in self.attempts]
        ended += [trial.ended_at for trial in self.trials if trial.ended_at is not None]
        return max(ended, default=self.study.created_at)

    @property
    def wall_seconds(self) -> float | None:
        """Time from the first claim to the end of the last attempt, or to now if one is running."""
        ran = self.running
        return max(0.0, max(end for _, end in ran) - min(begin for begin, _ in ran)) if ran else None

    @property
    def running(self) -> list[Interval]:
        """When each attempt ran; those that run still end now."""
        now = self.last_moment
        return [(one.claimed_at, now if one.ended_at is None else one.ended_at) for one in self.attempts]

    @cached_property
    def time(self) -> TimeSpent:
        """Where the time of its workers went."""
        return time_spent(self.attempts, self.evaluating)

    def checkpoint_path(self, name: str) -> str | None:
        """Return where a checkpoint is, if that is known."""
        return (self.checkpoint_paths or {}).get(name)


def finite_fitness(trial: TrialRecord) -> float | None:
    """Return the fitness of a completed trial if it is a finite number and the trial is feasible."""
    if trial.criteria is not None and trial.criteria.infeasible:
        return None
    if trial.state is not JobState.COMPLETED or trial.fitness is None or not math.isfinite(trial.fitness):
        return None
    return trial.fitness


def same(one: Json, other: Json) -> bool:
    """Return whether two values of a hyperparameter are the same. True and 1 are not, though Python says so."""
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def _hyperparameter(name: str, seen: Sequence[Json], entry: Mapping[str, Json]) -> Hyperparameter:
    numbers = [float(value) for value in seen if isinstance(value, (int, float)) and not isinstance(value, bool)]
    kind = entry.get("kind")
    if len(numbers) < len(seen) or kind in ("choice", "ordinal"):
        listed = entry.get("values")
        known: list[Json] = list(listed) if isinstance(listed, Sequence) and not isinstance(listed, str) else []
        for value in seen:
            if not any(same(value, other) for other in known):
                known.append(value)
        return Hyperparameter(name=name, log=False, categories=tuple(known), ordered=kind == "ordinal")
    log = entry.get("log")
    if not isinstance(log, bool):
        log = "low" not in entry and max(numbers) > LOG_RATIO * min(numbers)
    return Hyperparameter(name=name, log=log and min(numbers) > 0, categories=None)
