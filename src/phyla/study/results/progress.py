"""The progress of a study, for live displays and status pages."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from phyla.machine import Reader, count_measurements
from phyla.queries import best_scores, recent
from phyla.records import (
    Aim,
    Attempt,
    AttemptState,
    Checkpoint,
    CheckpointState,
    Cohort,
    JobState,
    JsonObject,
    Member,
    MemberState,
    Scored,
    StudyRecord,
    StudyState,
    TrialRecord,
)

if TYPE_CHECKING:
    from phyla.store import Store

NEWEST = 200
"""Newest trials that are read for the last activity and the pace."""
AT_ONCE = 1000
"""Limit for the trials that one look loads."""
REPLAY = "phyla.strategies/replay"
"""The strategy whose trials are known from the start, by the name that a study records."""
SHARE = 20
"""Looking takes at most one part in this many of the time."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """A study at one moment."""

    study: StudyRecord
    now: float  # the database's time, in seconds since the epoch
    members: tuple[Member, ...]  # the chosen members
    # The trial of each chosen member, by index: its running trial, else its last completed one.
    trials: Mapping[int, TrialRecord]
    cohorts: tuple[Cohort, ...]  # all members, counted by equal state
    unfinished: Mapping[int, TrialRecord] = field(default_factory=dict)  # trials that run or are queued, by id
    held: tuple[Attempt, ...]  # the running attempts at trials, and at eval jobs
    counts: Mapping[str, int]  # how many training trials are in each state
    # Trials on the Pareto front, best in the first goal first; without trade-offs only the best.
    front: tuple[TrialRecord, ...]
    member_steps: int | None  # steps that each member is to spend in all; None if unknown
    planned_trials: int | None  # completed trials that the study is expected to end with; None if unknown
    last_activity: float  # when a trial was last claimed or ended; the study's creation before the first one
    step_s: float | None = None  # seconds per step at present, over all that train at once; None if unknown
    damaged: tuple[Checkpoint, ...] = ()  # checkpoints whose files differ from what was committed, oldest first
    # Seconds for which no worker has renewed a lease, or begun or ended a trial, where a study is running and no
    # lease is left; None otherwise.
    silent_s: float | None = None
    # Attempts that returned their trials to the queue with an error, oldest first.
    given_back: tuple[Attempt, ...] = ()
    gone: frozenset[int] = frozenset()  # running trials whose workers are lost
    # Measurements of the final that have ended, and how many it takes; None before it begins.
    final: tuple[int, int] | None = None

    def doing(self, member: Member) -> str:
        """Return the activity of a chosen member."""
        trial = self.trials.get(member.index)
        if member.retired:
            return "retired"
        if member.state is not MemberState.RUNNING or trial is None:
            return member.state
        if trial.state is not JobState.RUNNING:
            return "queued"
        return "worker gone" if trial.id in self.gone else "running"

    def scored(self, member: Member) -> Scored | TrialRecord | None:
        """Return the record with a member's fitness: its head, or the last completed trial of a retired member."""
        return self.trials.get(member.index) if member.retired else member.head

    @property
    def aim(self) -> Aim:
        """What the study selects for."""
        return Aim.from_config(self.study.config)

    @property
    def running(self) -> tuple[Attempt, ...]:
        """The running attempts at trials."""
        return tuple(attempt for attempt in self.held if attempt.job in self.unfinished)

    @property
    def evaluating(self) -> int:
        """How many eval jobs are running."""
        return len(self.held) - len(self.running)

    @property
    def best(self) -> TrialRecord | None:
        """The completed trial with the best score whose checkpoint is kept, maybe by luck; None without one."""
        return self.front[0] if self.front else None

    @property
    def completed(self) -> int:
        """Number of completed training trials."""
        return self.counts.get("completed", 0)

    @property
    def spent_steps(self) -> int:
        """Steps that all members together have completed."""
        return sum(cohort.size * (cohort.progress - cohort.joined_steps) for cohort in self.cohorts)

    @property
    def total_steps(self) -> int | None:
        """Steps that all members together are to spend; None if unknown.

        A retired member spends no more than it has, nor does one that had more steps before a change; one that
        joined later spends what was left when it joined.
        """
        if self.member_steps is None:
            return None
        return sum(
            cohort.size * (max(cohort.progress, 0 if cohort.retired else self.member_steps) - cohort.joined_steps)
            for cohort in self.cohorts
        )

    @property
    def left_s(self) -> float | None:
        """Seconds until the study is complete, at the present pace; None if unknown, or without a worker."""
        if self.study.state is StudyState.COMPLETED:
            return 0.0
        total, works = self.total_steps, self.study.state is StudyState.RUNNING and self.silent_s is None
        if total is None or self.step_s is None or not works or self.final is not None:
            return None
        return max(0, total - self.spent_steps) * self.step_s

    @property
    def active(self) -> int:
        """Number of members that are not retired."""
        return sum(cohort.size for cohort in self.cohorts if not cohort.retired)

    @property
    def size(self) -> int:
        """Number of members, retired ones too."""
        return sum(cohort.size for cohort in self.cohorts)

    @property
    def given_up(self) -> int:
        """Number of members that were given up."""
        return sum(cohort.size for cohort in self.cohorts if cohort.given_up)


def progress(reader: Reader, most: int | None = None, first: int = 0) -> Progress:
    """Read the progress of a study with all members by index, or with the best from `first` on, up to `most`."""
    return progress_of(reader, reader.members() if most is None else reader.foremost(most)[first:])


def progress_of(reader: Reader, members: Sequence[Member]) -> Progress:
    """Read the progress of a study and of some members."""
    study = reader.study()
    plan: Any = study.config["plan"]
    cohorts = tuple(reader.cohorts())
    trial_by_member = {member.index: _shown_trial(reader, member) for member in members}
    trials = {index: trial for index, trial in trial_by_member.items() if trial is not None}
    now, held, counts = reader.now(), reader.running(), reader.counts()
    unfinished = {trial.id: trial for trial in reader.unfinished()}
    newest = reader.newest_trials(NEWEST)
    times = [at for trial in newest for at in (trial.started_at, trial.ended_at)]
    last_activity = max([study.created_at, *(at for at in times if at is not None)])
    planned: int | None = counts.get("completed", 0)
    if study.state is not StudyState.COMPLETED:
        trials_per_cohort = [(cohort, trials_left(study.config, cohort)) for cohort in cohorts]
        # Trials before a change of the trial length keep their own length.
        done = sum(cohort.size * (cohort.generation - cohort.joined_generation) for cohort in cohorts)
        remaining = [None if trials is None else cohort.size * trials for cohort, trials in trials_per_cohort]
        planned = None if None in remaining else done + sum(filter(None, remaining))
    queued = [
        trial for trial in unfinished.values() if trial.state is JobState.PENDING and trial.token > trial.failures
    ]
    ended = [attempt for trial in queued for attempt in reader.attempts(trial.id)]
    returned = [attempt for attempt in ended if attempt.state is AttemptState.RELEASED and attempt.error]
    silent = None
    if study.state is StudyState.RUNNING:
        leases = [attempt.expires_at for attempt in held]
        silent = silent_s(leases, now, lease_s(study.config), last_activity)
    return Progress(
        study=study,
        now=now,
        members=tuple(members),
        trials=trials,
        cohorts=cohorts,
        unfinished=unfinished,
        held=tuple(held),
        counts=counts,
        front=tuple(_front(reader, Aim.from_config(study.config), members)),
        member_steps=plan["member_steps"],
        planned_trials=planned,
        last_activity=last_activity,
        step_s=step_s(newest),
        damaged=tuple(reader.checkpoints(CheckpointState.DAMAGED)),
        silent_s=silent,
        given_back=tuple(sorted(returned, key=lambda attempt: attempt.ended_at or 0.0)),
        gone=frozenset(attempt.job for attempt in held if attempt.expires_at < now),
        final=count_measurements(reader),
    )


def _front(reader: Reader, aim: Aim, members: Sequence[Member]) -> Sequence[TrialRecord]:
    """Return the trial with the best score, of several a member's newest one as the winner is; or the front."""
    front = best_scores(reader, aim)
    if aim.tradeoffs or not front:
        return front
    heads = [member.head for member in members if member.head is not None and not member.retired]
    equal = [head.trial for head in heads if head.order == front[0].order]
    return reader.chosen_trials([min(equal)]) if equal else front


def mark_lost_workers(progress: Progress, locks: Path | None) -> Progress:
    """Return progress with the lost workers marked that a machine's folder of locks shows."""
    from phyla.worker import dead_launches, launch_of

    held, now = progress.held, progress.now
    dead = dead_launches(locks, {launch_of(attempt.worker) for attempt in held})
    if not dead:
        return progress
    lost = [attempt for attempt in held if launch_of(attempt.worker) in dead or attempt.expires_at < now]
    silent = progress.silent_s
    if progress.study.state is StudyState.RUNNING and len(lost) == len(held):
        # Their processes no longer exist.
        silent = now - max(attempt.expires_at for attempt in held) + lease_s(progress.study.config)
    return replace(progress, silent_s=silent, gone=frozenset(attempt.job for attempt in lost))


def _shown_trial(reader: Reader, member: Member) -> TrialRecord | None:
    """Return the current trial of a member, or its head; for a retired member the last completed trial."""
    if member.retired:
        done = [trial for trial in reader.trials(member=member.index) if trial.state is JobState.COMPLETED]
        return done[-1] if done else None
    trial = member.current_trial or (member.head.trial if member.head else None)
    return None if trial is None else reader.trial(trial)


def step_s(trials: Iterable[TrialRecord]) -> float | None:
    """Return how long a step of trials that completed took, with all that ran at once; None without any.

    The first trial of each worker does not count once there are others: it also took the imports of training. Nor
    does the longest time in which none of them ran: the study may have been paused.
    """
    done = [trial for trial in trials if trial.state is JobState.COMPLETED and trial.started_at and trial.ended_at]
    first: dict[str | None, int] = {}
    for trial in sorted(done, key=lambda trial: trial.started_at or 0.0):
        first.setdefault(trial.worker, trial.id)
    firsts = {*first.values()}
    done = [trial for trial in done if trial.id not in firsts] or done
    spans = sorted((trial.started_at or 0.0, trial.ended_at or 0.0) for trial in done)
    steps = sum((trial.reached_step or 0) - trial.start_step for trial in done)
    pause, until = 0.0, spans[0][0] if spans else 0.0
    for began_at, ended_at in spans:
        pause, until = max(pause, began_at - until), max(until, ended_at)
    return (until - spans[0][0] - pause) / steps if spans and steps > 0 else None


def silent_s(leases: Sequence[float], now: float, length_s: float, last_activity: float) -> float | None:
    """Return for how many seconds a running study has had no worker; None while it may have one.

    `leases` say when each runs out, or ran out. Silence shorter than a lease does not count.
    """
    silent = now - max([last_activity, *(expires_at - length_s for expires_at in leases)])
    return None if any(expires_at >= now for expires_at in leases) or silent <= length_s else silent


def lease_s(config: JsonObject) -> float:
    """Return how long a claim lasts unless renewed, in seconds."""
    options: Any = config["options"]
    return float(options["lease_s"])


def trials_left(config: JsonObject, member: Member | Cohort) -> int | None:
    """Return how many more trials a member is expected to complete; None if that cannot be known.

    It is known of a replay, and of a strategy that has `member_steps` and `steps_per_trial`, unless its trials end
    at the switches of a schedule, too. Trials that end early make it more.
    """
    if member.retired or member.state is MemberState.DONE:
        return 0
    strategy: Any = config["strategy"]
    plan: Any = config["plan"]
    if strategy["plugin"] == REPLAY:
        return max(0, len(strategy["trials"]) - member.generation)
    until, length = plan["member_steps"], plan["steps_per_trial"]  # None for one trial of all steps
    if until is None or length == 0 or "schedule" in strategy:
        return None
    steps_left: int = max(0, until - member.progress)
    return -(-steps_left // (length or steps_left or 1))


@final
class Failures:
    """Returns each failed attempt once, except those before `since`; reads only what is new."""

    def __init__(self, since: float) -> None:
        self._since = since
        self._after: int | None = None
        self._open: dict[int, int] = {}

    def new(self, store: "Store", study: int) -> list[Attempt]:
        """Return the attempts that failed since the last call, by trial and token."""
        if self._after is None:
            page = store.look(study, recent, newest=NEWEST)
        else:
            page = store.look(study, recent, ids=sorted(self._open), after=self._after, limit=AT_ONCE)
        failures: list[Attempt] = []
        for trial in page.trials:
            last = self._open.pop(trial.id, 0)
            failed = [attempt for attempt in page.attempts.get(trial.id, ()) if self._counts(attempt, last)]
            failures += failed
            if trial.ended_at is None:
                self._open[trial.id] = max([last, *(attempt.token for attempt in failed)])
        self._after = max([self._after or 0, *(trial.id for trial in page.trials)])
        return failures

    def _counts(self, attempt: Attempt, last: int) -> bool:
        ended_badly = attempt.state in (AttemptState.FAILED, AttemptState.LOST) and attempt.error
        return bool(ended_badly) and attempt.token > last and (attempt.ended_at or 0.0) >= self._since


@final
class Throttle:
    """Limits how often the store is read: often enough for a display, and seldom enough for the store."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._next = 0.0
        self._took_s = 0.0

    @contextmanager
    def turn(self, *, at_once: bool = False) -> Iterator[bool]:
        """Yield whether it is time to look, and measure how long that takes."""
        before = time.monotonic()
        due = at_once or before >= self._next
        yield due
        if due:
            after = time.monotonic()
            took_s = after - before
            # A single slow look, such as one that waited for a service, does not delay the next.
            self._next = after + max(self._every_s, SHARE * min(took_s, self._took_s))
            self._took_s = took_s
