"""How far a study is: what a live display and a status page show."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

from phyla.machine import ALL
from phyla.records import (
    Aim,
    Attempt,
    AttemptState,
    Checkpoint,
    JsonObject,
    Member,
    StudyRecord,
    StudyState,
    TrialRecord,
)
from phyla.strategies import front_of
from phyla.study.expecting import Plan

if TYPE_CHECKING:
    from phyla.store import Reader

NEWEST = 200
"""Trials that are looked at for the time of the last activity."""

AT_ONCE = 1000
"""Trials that one look loads at most, however long the history."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """A study at one moment.

    Attributes:
        study: the study.
        now: the database's time, in seconds since the epoch.
        members: all members by index.
        trials: the trial that a member is at, by its index: its running one, else its last completed one.
        running: the running attempts at trials.
        counts: how many training trials are in each state.
        best: the completed trial with the best finite fitness whose checkpoint is kept; None without one.
        front: trials on the Pareto front, best in the first goal first; without trade-offs only the best.
        aim: what the study selects for.
        member_steps: steps that each member is to spend in all; None if unknown.
        planned_trials: completed trials that the study is expected to end with; None if unknown.
        last_activity: when a trial was last claimed or ended; the study's creation before the first one.
        damaged: checkpoints whose files are not what was committed, oldest first.
        silent_s: seconds for which nobody has renewed a lease, or begun or ended a trial, where a study is running
            and no lease is left; None otherwise.
    """

    study: StudyRecord
    now: float
    members: tuple[Member, ...]
    trials: Mapping[int, TrialRecord]
    running: tuple[Attempt, ...]
    counts: Mapping[str, int]
    best: TrialRecord | None
    front: tuple[TrialRecord, ...]
    aim: Aim
    member_steps: int | None
    planned_trials: int | None
    last_activity: float
    damaged: tuple[Checkpoint, ...] = ()
    silent_s: float | None = None

    @property
    def completed(self) -> int:
        """Number of completed training trials."""
        return self.counts.get("completed", 0)

    @property
    def failed(self) -> int:
        """Number of training trials that failed for good."""
        return self.counts.get("failed", 0)

    @property
    def cancelled(self) -> int:
        """Number of training trials that a stopping rule ended early, or whose member was retired."""
        return self.counts.get("cancelled", 0)

    @property
    def spent_steps(self) -> int:
        """How far all members have come, in steps, together."""
        return sum(member.progress - member.joined_steps for member in self.members)

    @property
    def total_steps(self) -> int | None:
        """Steps that all members together are to spend; None if unknown.

        A retired member spends no more than it has; one that joined later what was left when it joined.
        """
        if self.member_steps is None:
            return None
        return sum(
            (member.progress if member.retired else self.member_steps) - member.joined_steps
            for member in self.members
        )

    @property
    def active(self) -> int:
        """Number of members that are not retired."""
        return sum(not member.retired for member in self.members)


def look(reader: "Reader", choose: Callable[[Sequence[Member]], Iterable[Member]]) -> Progress:
    """Read how far a study is; see `Results.progress`."""
    study = reader.study()
    members = tuple(reader.members())
    aim = Aim.from_config(study.config)
    front = best_of(reader, aim)
    trials = {}
    for member in choose(members):
        trial = member.current_trial or (member.head.trial if member.head else None)
        if trial is not None:
            trials[member.index] = reader.trial(trial)
    counts = reader.counts()
    plan = Plan.of(study.config)
    now, held = reader.now(), reader.running()
    current = {member.current_trial for member in members}
    last_activity = _last_activity(reader, study)
    silent = None
    if study.state is StudyState.RUNNING:
        leases = [attempt.expires_at for attempt in held]
        silent = silent_s(leases, now, lease_s(study.config), last_activity)
    return Progress(
        study=study,
        now=now,
        members=members,
        trials=trials,
        running=tuple(attempt for attempt in held if attempt.job in current),
        counts=counts,
        best=front[0] if front else None,
        front=tuple(front),
        aim=aim,
        member_steps=plan.member_steps,
        planned_trials=_planned_trials(study, plan, members, counts.get("completed", 0)),
        last_activity=last_activity,
        damaged=tuple(reader.damaged_checkpoints()),
        silent_s=silent,
    )


def silent_s(leases: Sequence[float], now: float, length_s: float, last_activity: float) -> float | None:
    """Return for how many seconds nobody has worked on a study that is running; None while somebody may.

    Args:
        leases: when each lease runs out, or ran out.
        now: the time.
        length_s: how long a lease lasts; nobody is missed for a shorter time.
        last_activity: when a trial was last claimed or ended.
    """
    silent = now - max([last_activity, *(expires_at - length_s for expires_at in leases)])
    return None if any(expires_at >= now for expires_at in leases) or silent <= length_s else silent


def lease_s(config: JsonObject) -> float:
    """Return how long a claim lasts unless renewed, in seconds."""
    options: Any = config["options"]
    return float(options["lease_s"])


def best_of(reader: "Reader", aim: Aim) -> list[TrialRecord]:
    """Return the best trial whose checkpoint is kept, or the Pareto front, best in the first goal first."""
    return front_of(reader.best_trials(ALL)) if aim.tradeoffs else list(reader.best_trials(1))


def _planned_trials(study: StudyRecord, plan: Plan, members: Sequence[Member], completed: int) -> int | None:
    if study.state is StudyState.COMPLETED:
        return completed
    # Those before a change of their length were as long as they were.
    done = sum(member.generation - member.joined_generation for member in members)
    left = [plan.trials_left(member) for member in members]
    return None if None in left else done + sum(each for each in left if each is not None)


def _last_activity(reader: "Reader", study: StudyRecord) -> float:
    times = [study.created_at]
    for trial in reader.newest_trials(NEWEST):
        times += [time for time in (trial.started_at, trial.ended_at) if time is not None]
    return max(times)


@final
class Failures:
    """Tells each failed attempt once, as they occur; costs only what is new.

    Args:
        since: what ended before this time is not told, in seconds since the epoch.
    """

    def __init__(self, since: float) -> None:
        self._since = since
        self._after: int | None = None
        self._open: dict[int, int] = {}

    def new(self, reader: "Reader") -> list[Attempt]:
        """Return the attempts that failed since the last call, by trial and token."""
        if self._after is None:
            members = reader.members()
            newest = reader.newest_trials(NEWEST)
            self._after = newest[-1].id - 1 if newest else 0
            current = (member.current_trial for member in members)
            self._open = {trial: 0 for trial in current if trial is not None and trial <= (self._after or 0)}
        trials = [reader.trial(known) for known in sorted(self._open)]
        trials += reader.trials(after=self._after, limit=AT_ONCE)
        told: list[Attempt] = []
        for trial in trials:
            last = self._open.pop(trial.id, 0)
            if trial.failures:
                failed = [attempt for attempt in reader.attempts(trial.id) if self._counts(attempt, last)]
                told += failed
                last = max([last, *(attempt.token for attempt in failed)])
            if trial.ended_at is None:
                self._open[trial.id] = last
            self._after = max(self._after, trial.id)
        return told

    def _counts(self, attempt: Attempt, last: int) -> bool:
        ended_badly = attempt.state in (AttemptState.FAILED, AttemptState.LOST) and attempt.error
        return bool(ended_badly) and attempt.token > last and (attempt.ended_at or 0.0) >= self._since
