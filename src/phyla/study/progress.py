"""How far a study is: what a live display and a status page show."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

from phyla import plugins
from phyla.errors import PhylaError
from phyla.records import Attempt, AttemptState, JsonObject, Member, StudyRecord, TrialRecord

if TYPE_CHECKING:
    from phyla.store import Reader

NEWEST = 200
"""Trials that are looked at for the time of the last activity."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """A study at one moment.

    Attributes:
        study: the study.
        now: the database's time, in seconds since the epoch.
        members: all members by index.
        trials: the trial that a member is at, by its index: its running one, else its last completed one.
        running: the running attempts.
        counts: how many training trials are in each state.
        best: the completed trial with the best finite fitness whose checkpoint is kept; None without one.
        member_steps: steps that each member is to spend in all; None if unknown.
        planned_trials: completed trials that the study is expected to end with; None if unknown.
        last_activity: when a trial was last claimed or ended; the study's creation before the first one.
    """

    study: StudyRecord
    now: float
    members: tuple[Member, ...]
    trials: Mapping[int, TrialRecord]
    running: tuple[Attempt, ...]
    counts: Mapping[str, int]
    best: TrialRecord | None
    member_steps: int | None
    planned_trials: int | None
    last_activity: float

    @property
    def completed(self) -> int:
        """Number of completed training trials."""
        return self.counts.get("completed", 0)

    @property
    def failed(self) -> int:
        """Number of training trials that failed for good."""
        return self.counts.get("failed", 0)

    @property
    def spent_steps(self) -> int:
        """Steps of all members' completed trials together."""
        return sum(member.spent_steps for member in self.members)

    @property
    def total_steps(self) -> int | None:
        """Steps that all members together are to spend; None if unknown."""
        return None if self.member_steps is None else self.member_steps * self.study.population_size


def look(
    reader: "Reader",
    config: JsonObject,
    choose: Callable[[Sequence[Member]], Iterable[Member]] = lambda members: members,
) -> Progress:
    """Read how far a study is.

    Args:
        reader: a look at the study.
        config: its configuration.
        choose: the members whose trials are wanted; by default all.
    """
    members = tuple(reader.members())
    found = reader.best_trials(1)
    trials = {}
    for member in choose(members):
        trial = member.current_trial or (member.head.trial if member.head else None)
        if trial is not None:
            trials[member.index] = reader.trial(trial)
    study = reader.study()
    steps = planned_steps(config)
    return Progress(
        study=study,
        now=reader.now(),
        members=members,
        trials=trials,
        running=tuple(reader.running()),
        counts=reader.counts(),
        best=found[0] if found else None,
        member_steps=steps,
        planned_trials=_planned_trials(config, steps, study.population_size),
        last_activity=_last_activity(reader, study, members),
    )


def planned_steps(config: JsonObject) -> int | None:
    """Return the steps that each member of a study is to spend in all; None if that cannot be known here."""
    try:
        strategy: Any = plugins.decode(config["strategy"])
    except PhylaError:
        return None
    steps: int | None = strategy.member_steps
    return steps


def _planned_trials(config: JsonObject, steps: int | None, population_size: int) -> int | None:
    strategy = config["strategy"]
    length = strategy.get("steps_per_trial") if isinstance(strategy, Mapping) else None
    if steps is None or not isinstance(length, int) or length < 1:
        return None
    return population_size * -(-steps // length)


def _last_activity(reader: "Reader", study: StudyRecord, members: Sequence[Member]) -> float:
    times = [study.created_at]
    for trial in reader.trials(after=newest_trial(members) - NEWEST):
        times += [time for time in (trial.started_at, trial.ended_at) if time is not None]
    return max(times)


def newest_trial(members: Sequence[Member]) -> int:
    """Return the highest id of a trial that the members refer to; 0 without any."""
    newest = 0
    for member in members:
        head = member.head.trial if member.head else 0
        newest = max(newest, head, member.current_trial or 0, member.broken_trial or 0)
    return newest


@final
class Failures:
    """Tells each failed attempt once, as they occur; costs only what is new.

    Args:
        reader: a look at the study now; what failed before is not told.
    """

    def __init__(self, reader: "Reader") -> None:
        members = reader.members()
        self._after = newest_trial(members)
        self._seen: dict[int, int] = {}
        for member in members:
            if member.current_trial is not None:
                self._seen[member.current_trial] = _failed_token(reader.attempts(member.current_trial))

    def new(self, reader: "Reader") -> list[Attempt]:
        """Return the attempts that failed since the last call, by trial and token."""
        trials = [reader.trial(known) for known in sorted(self._seen)]
        trials += reader.trials(after=self._after)
        found: list[Attempt] = []
        for trial in trials:
            before = self._seen.get(trial.id, 0)
            if trial.failures:
                failed = [attempt for attempt in _failed(reader.attempts(trial.id)) if attempt.token > before]
                found += failed
                before = max([before, *(attempt.token for attempt in failed)])
            self._seen[trial.id] = before
            if trial.ended_at is not None:
                del self._seen[trial.id]
            self._after = max(self._after, trial.id)
        return found


def _failed(attempts: Sequence[Attempt]) -> list[Attempt]:
    ended_badly = (AttemptState.FAILED, AttemptState.LOST)
    return [attempt for attempt in attempts if attempt.state in ended_badly and attempt.error]


def _failed_token(attempts: Sequence[Attempt]) -> int:
    return max((attempt.token for attempt in _failed(attempts)), default=0)
