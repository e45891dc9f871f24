"""StudyData: the records of one study, and what its figures share."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias, final

from phyla.lineage import Lineage, Schedule
from phyla.records import Attempt, Checkpoint, Goal, Member, StudyRecord, TrialRecord, TrialState
from phyla.strategies import front_of

CheckpointPaths: TypeAlias = Mapping[str, str] | Callable[[str], str | None]
"""Where checkpoints are, by name."""
Interval: TypeAlias = tuple[float, float]
"""Begin and end, in seconds since the epoch."""


@final
@dataclass(frozen=True, slots=True)
class Spent:
    """Where a trial lies on its member's own clock.

    Attributes:
        start: steps the member had spent before it.
        end: steps it had spent after it; None unless it completed.
    """

    start: int
    end: int | None


@final
@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class StudyData:
    """The records of one study, as they were at one moment.

    Attributes:
        study: the study.
        members: its members.
        trials: all its trials.
        attempts: all its attempts.
        maximize: whether a higher fitness is better.
        metric: name of the fitness.
        description: what is selected for, in words; by default made of `maximize` and `metric`.
        tradeoffs: the goals that span a Pareto front; empty without one.
        checkpoint_paths: where checkpoints are, as a mapping or a function of their name; optional.
        damaged: checkpoints whose files are not what was committed.
        evaluating: when each eval task of the study ran.
        now: when the records were read, in seconds since the epoch; what is still running is drawn up to it.
    """

    study: StudyRecord
    members: Sequence[Member]
    trials: Sequence[TrialRecord]
    attempts: Sequence[Attempt]
    maximize: bool
    metric: str
    description: str | None = None
    tradeoffs: tuple[Goal, ...] = ()
    checkpoint_paths: CheckpointPaths | None = None
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
                if trial.state is TrialState.COMPLETED and trial.reached_step is not None:
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
        return [trial for trial in self.lineage if trial.state is TrialState.COMPLETED]

    @cached_property
    def front(self) -> list[TrialRecord]:
        """The Pareto front of all completed trials, best in the first goal first; empty without trade-offs."""
        return front_of(self.completed) if self.tradeoffs else []

    @property
    def aim(self) -> str:
        """What is selected for, in words."""
        return self.description or f"{'maximise' if self.maximize else 'minimise'} {self.metric}"

    @cached_property
    def winner_path(self) -> tuple[TrialRecord, ...]:
        """The trials that trained the winner's weights, root first; empty while there is no winner."""
        return self.lineage.ancestry(self.best.id) if self.best else ()

    @cached_property
    def schedule(self) -> Schedule | None:
        """The winner's schedule."""
        return self.lineage.schedule(self.best.id) if self.best else None

    @cached_property
    def scored(self) -> list[TrialRecord]:
        """Completed training trials that are feasible and have a finite fitness, by id."""
        return [trial for trial in self.lineage if finite_fitness(trial) is not None]

    @cached_property
    def counts(self) -> dict[TrialState, int]:
        """How many training trials are in each state."""
        found = dict.fromkeys(TrialState, 0)
        for trial in self.lineage:
            found[trial.state] += 1
        return found

    @property
    def total_steps(self) -> int:
        """Steps that all members together have spent."""
        return sum(
            max((spent.end or spent.start for spent in self._spent_of(m)), default=0) for m in self.by_member
        )

    def _spent_of(self, member: int) -> list[Spent]:
        return [self.spent[trial.id] for trial in self.by_member[member]]

    @property
    def last_moment(self) -> float:
        """The latest time the records know of, in seconds since the epoch."""
        if self.now is not None:
            return self.now
        times = [self.study.created_at]
        times += [a.claimed_at if a.ended_at is None else a.ended_at for a in self.attempts]
        times += [trial.ended_at for trial in self.trials if trial.ended_at is not None]
        return max(times)

    @property
    def wall_seconds(self) -> float | None:
        """Time from the first claim to the end of the last attempt, or to now if one is running."""
        if not self.attempts:
            return None
        start = min(attempt.claimed_at for attempt in self.attempts)
        now = self.last_moment
        return max(0.0, max(now if a.ended_at is None else a.ended_at for a in self.attempts) - start)

    @property
    def direction(self) -> str:
        """What is better, in words."""
        return "higher is better" if self.maximize else "lower is better"

    def checkpoint_path(self, name: str) -> str | None:
        """Return where a checkpoint is, if that was given."""
        if self.checkpoint_paths is None:
            return None
        if isinstance(self.checkpoint_paths, Mapping):
            return self.checkpoint_paths.get(name)
        return self.checkpoint_paths(name)


def finite_fitness(trial: TrialRecord) -> float | None:
    """Return the fitness of a completed trial if it is a finite number and the trial is feasible."""
    if trial.criteria is not None and trial.criteria.infeasible:
        return None
    if trial.state is not TrialState.COMPLETED or trial.fitness is None or not math.isfinite(trial.fitness):
        return None
    return trial.fitness
