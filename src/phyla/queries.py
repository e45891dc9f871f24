"""Queries that many ask about a study: functions that only read, each in one transaction; see `Store.look`.

Those that have a single caller are beside it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, final

from phyla import machine
from phyla.configuration import keeping_of
from phyla.evaluation.matrix import Lag, lag
from phyla.machine import ALL, NO_LIMIT, KeptCheckpoints, Room, Winner, asleep, find_winner, is_ending
from phyla.records import (
    Aim,
    Attempt,
    Checkpoint,
    CheckpointState,
    Cohort,
    EvalEvent,
    EvalJob,
    EvalResult,
    Group,
    GroupState,
    JobState,
    Member,
    Report,
    RunStart,
    StudyRecord,
    TimeSpent,
    TrialRecord,
    Waiting,
)
from phyla.store import Reader, Store, reports_that_count
from phyla.strategies import front_of

PAGE = 1000
"""Records that are read in one transaction where they are all that is read."""

# The study


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A population in few numbers.

    Attributes:
        now: the database's time, in seconds since the epoch.
        counts: how many training trials are in each state.
        cohorts: members in the same situation, counted.
        newest: the training trial that completed last; None without any.
    """

    study: StudyRecord
    now: float
    counts: dict[str, int]
    cohorts: list[Cohort]
    newest: TrialRecord | None


def study(reader: Reader) -> StudyRecord:
    """Return the study."""
    return reader.study()


def summary(reader: Reader) -> Summary:
    """Return the population in few numbers."""
    return Summary(
        study=reader.study(),
        now=reader.now(),
        counts=dict(reader.counts()),
        cohorts=list(reader.cohorts()),
        newest=next(iter(reader.last_completed(1)), None),
    )


def members(reader: Reader) -> list[Member]:
    """Return all members by index."""
    return list(reader.members())


def starts(reader: Reader) -> list[RunStart]:
    """Return how the study was started, each time, oldest first."""
    return list(reader.starts())


def time_spent(reader: Reader) -> TimeSpent:
    """Return where the time of the workers went."""
    return reader.time_spent()


def events(reader: Reader, *, after: int = 0) -> list[EvalEvent]:
    """Return what a person should know, by id, from the first one whose id is above `after`."""
    return list(reader.events(after=after))


# Trials


def trials(
    reader: Reader, *, ids: Sequence[int] | None = None, after: int = 0, limit: int | None = None
) -> list[TrialRecord]:
    """Return trials by id, from the first one whose id is above `after`; or those that there are of some ids."""
    if ids is None:
        return list(reader.trials(after=after, limit=limit))
    return [trial for trial in map(reader.job, ids) if isinstance(trial, TrialRecord)]


def attempts(
    reader: Reader,
    *,
    jobs: Sequence[int] | None = None,
    after: tuple[int, int] = (0, 0),
    limit: int | None = None,
) -> list[Attempt]:
    """Return attempts at trials by (trial, token), from the first one above `after`; or those at some jobs."""
    if jobs is None:
        return list(reader.trial_attempts(after=after, limit=limit))
    return [attempt for job in jobs for attempt in reader.attempts(job)]


def running(reader: Reader, *, leased: bool = False) -> list[Attempt]:
    """Return the running attempts, or those of them whose lease has not run out."""
    return [attempt for attempt in reader.running() if not leased or attempt.expires_at > reader.now()]


def broken_trials(reader: Reader) -> list[TrialRecord]:
    """Return the trials that failed, and those that failed so far and are tried again, by id."""
    ended = [trial for trial in reader.ended(None) if trial.state is JobState.FAILED]
    unfinished = [trial for trial in reader.unfinished() if trial.failures]
    return sorted([*ended, *unfinished], key=lambda trial: trial.id)


def ancestry(reader: Reader, trial: int) -> list[TrialRecord]:
    """Return a trial, then that whose weights it started from, and so on; nothing if there is no such trial."""
    return list(reader.ancestry(trial)) if isinstance(reader.job(trial), TrialRecord) else []


def reports(reader: Reader, trial: int) -> list[Report]:
    """Return what a trial reported, by step: of each attempt, up to where the next one went on."""
    return [report for row in trials(reader, ids=[trial]) for report in reports_that_count(reader, row)]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Recent:
    """Some trials by id, and the attempts at those that failed at least once."""

    trials: list[TrialRecord]
    attempts: dict[int, list[Attempt]]


def recent(
    reader: Reader, *, newest: int = 0, ids: Sequence[int] = (), after: int | None = None, limit: int = 0
) -> Recent:
    """Return the `newest` trials and the unfinished ones; or those of some ids, and up to `limit` after one."""
    rows = [*reader.newest_trials(newest), *reader.unfinished()] if newest else []
    rows += trials(reader, ids=ids)
    rows += [] if after is None else reader.trials(after=after, limit=limit)
    by_id = {trial.id: trial for trial in rows}
    failed = [trial.id for trial in rows if trial.failures]
    return Recent(
        trials=[trial for _, trial in sorted(by_id.items())],
        attempts={trial: list(reader.attempts(trial)) for trial in failed},
    )


# Checkpoints of a population


def checkpoints(
    reader: Reader, *, names: Sequence[str] | None = None, state: CheckpointState | None = None
) -> list[Checkpoint]:
    """Return all checkpoints, or those in state live, deleting or damaged, oldest first; or some by name."""
    if names is None:
        return list(reader.checkpoints(state))
    return [row for row in map(reader.checkpoint, names) if row is not None]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class BestTrial:
    """One of the best trials, and what was recorded of its checkpoint.

    Attributes:
        winner: why it is the best one; None of a Pareto front.
    """

    trial: TrialRecord
    checkpoint: Checkpoint | None
    winner: Winner | None = None


def best(reader: Reader) -> list[BestTrial]:
    """Return the winner, or the Pareto front, best in the first goal first; of trials with a kept checkpoint."""
    config = reader.study().config
    aim = Aim.from_config(config)
    if aim.tradeoffs:
        return [
            BestTrial(trial=trial, checkpoint=_checkpoint(reader, trial)) for trial in best_scores(reader, aim)
        ]
    winner = find_winner(reader, maximize=aim.maximize)
    if winner is None:
        return []
    return [BestTrial(trial=winner.trial, checkpoint=_checkpoint(reader, winner.trial), winner=winner)]


def _checkpoint(reader: Reader, trial: TrialRecord) -> Checkpoint | None:
    return reader.checkpoint(trial.checkpoint or "")


def best_scores(reader: Reader, aim: Aim) -> list[TrialRecord]:
    """Return the trial with the best score, or the Pareto front; of trials with a kept checkpoint."""
    return front_of(reader.best_trials(ALL)) if aim.tradeoffs else list(reader.best_trials(1))


def retention(reader: Reader) -> KeptCheckpoints:
    """Return which checkpoints are kept, by the settings that are stored, and which may go."""
    return machine.retention(reader, keeping_of(reader.study().config))


# Evaluation


def ended_groups(reader: Reader, since: float) -> tuple[float, Sequence[Group]]:
    """Return the time, and the evaluation groups that ended since a time before."""
    return reader.now(), reader.ended_groups(since)


def job(reader: Reader, number: int) -> TrialRecord | EvalJob | None:
    """Return a job of any kind, or None."""
    return reader.job(number)


def next_eval_job(reader: Reader, holding: int | None, room: Room = NO_LIMIT) -> EvalJob | None:
    """Return the eval job that a worker would run next."""
    return reader.next_eval_job(holding, room)


def eval_jobs(reader: Reader, *, after: int = 0, limit: int | None = None) -> list[EvalJob]:
    """Return eval jobs by id, from the first one whose id is above `after`."""
    return list(reader.eval_jobs(after=after, limit=limit))


def groups(reader: Reader, *, suite: str | None = None, after: int = 0, limit: int | None = None) -> list[Group]:
    """Return groups by id, from the first one whose id is above `after`; of one suite, or all."""
    return list(reader.groups(suite=suite, after=after, limit=limit))


def seen(
    reader: Reader, *, ids: Sequence[int] | None = None, after: int = 0, limit: int | None = None
) -> list[Checkpoint]:
    """Return the checkpoints seen, by id, from the first one whose id is above `after`; or some of them."""
    if ids is None:
        return list(reader.all_seen(after=after, limit=limit))
    return [reader.seen(number) for number in ids]


def newest_seen(reader: Reader, count: int) -> list[Checkpoint]:
    """Return the checkpoints that were seen last, oldest first; reads few others, however many there are."""
    newest, span = reader.newest_seen(), count
    while newest is not None:
        rows = reader.all_seen(after=max(0, newest.id - span))
        if len(rows) >= count or span >= newest.id:
            return list(rows[-count:])
        span *= 4
    return []


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class GroupResults:
    """The results of one group in the ledger, by identity of the eval task, by shard; a failed group has fewer.

    Attributes:
        group: the group.
        jobs: its eval tasks, and the aggregation where that is asked for.
        results: what the ledger has.
        running: the attempts at those that are running.
    """

    group: Group
    jobs: Sequence[EvalJob]
    results: Mapping[str, Sequence[EvalResult]]
    running: Sequence[Attempt] = ()


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatedCheckpoint:
    """One checkpoint and its groups, by replicate; `now` is the database's time."""

    seen: Checkpoint
    groups: list[GroupResults]
    now: float


def evaluated(reader: Reader, ids: Sequence[int], *, results: bool = True) -> list[EvaluatedCheckpoint]:
    """Return what was evaluated on some of the checkpoints seen, without `results` only how far that is."""
    return [
        EvaluatedCheckpoint(
            seen=reader.seen(number),
            groups=[
                _results(reader, group, results=results)
                for group in sorted(reader.groups_of(number), key=lambda group: (group.replicate, group.id))
            ],
            now=reader.now(),
        )
        for number in ids
    ]


def in_evaluation(reader: Reader, ids: Sequence[int]) -> list[int]:
    """Return which of the checkpoints seen have unfinished evaluations."""
    return [
        number
        for number in ids
        if any(
            group.state is GroupState.QUEUED or reader.unfinished_jobs(group.id)
            for group in reader.groups_of(number)
        )
    ]


def newest_complete(reader: Reader, suite: str) -> list[EvaluatedCheckpoint]:
    """Return what was evaluated on the newest checkpoint with a complete group of a suite, if there is one."""
    newest = reader.backlog(suite).complete
    return [] if newest is None else evaluated(reader, [newest])


def group_results(reader: Reader, group: int) -> GroupResults:
    """Return what the ledger has of a group."""
    return _results(reader, reader.group(group), results=True)


def _results(reader: Reader, group: Group, *, results: bool) -> GroupResults:
    identity = reader.seen(group.seen).identity
    jobs = [job for job in reader.group_jobs(group.id) if job.task]
    shards = {job.identity: job.shards for job in jobs} if results else {}
    attempts = [reader.attempt(job.id, job.token) for job in jobs if job.state is JobState.RUNNING]
    return GroupResults(
        group=group,
        jobs=jobs,
        results={
            task: list(reader.ledger(identity, task, group.replicate, count)) for task, count in shards.items()
        },
        running=[attempt for attempt in attempts if attempt is not None],
    )


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class InUse:
    """The checkpoints seen that are needed.

    Attributes:
        held: ids of those that queued or best groups refer to.
        best: the best group of each suite that has one.
        checkpoints: the checkpoints of these groups, by suite.
    """

    held: frozenset[int]
    best: dict[str, Group]
    checkpoints: dict[str, Checkpoint]


def in_use(reader: Reader, suites: Sequence[str]) -> InUse:
    """Return which of the checkpoints seen are needed."""
    groups = {suite: reader.best_group(suite) for suite in suites}
    best = {suite: group for suite, group in groups.items() if group is not None}
    return InUse(
        held=reader.held_paths(),
        best=best,
        checkpoints={suite: reader.seen(group.seen) for suite, group in best.items()},
    )


def lags(reader: Reader, suites: Sequence[str]) -> list[Lag]:
    """Return how far each suite is behind."""
    return [lag(suite, reader.backlog(suite), reader.seen, reader.now()) for suite in suites]


def waiting(reader: Reader, *, resting: bool = True) -> list[Waiting]:
    """Return how many eval jobs that may start ask for GPUs or a label; those that rest only where asked for."""
    # An eval task that rests needs no worker until it is given up.
    left_out = frozenset[str]() if resting or is_ending(reader) else asleep(reader)
    return list(reader.waiting(left_out))


# Pages

Row = TypeVar("Row", TrialRecord, Attempt, EvalJob, Group, Checkpoint)


def every(store: Store, study: int, query: Callable[..., list[Row]], **chosen: Any) -> Iterator[Row]:
    """Iterate over what a query that takes `after` and `limit` returns, without holding all of it."""
    page = store.look(study, query, limit=PAGE, **chosen)
    while page:
        yield from page
        last = page[-1]
        after = (last.job, last.token) if isinstance(last, Attempt) else last.id
        page = store.look(study, query, after=after, limit=PAGE, **chosen)
