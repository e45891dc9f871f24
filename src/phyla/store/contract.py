"""The contract of a store; every implementation passes the same suite of tests."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol, final

from phyla.machine import Command, View
from phyla.records import (
    Attempt,
    Backlog,
    Checkpoint,
    Cohort,
    EvalJob,
    FileName,
    Group,
    JsonObject,
    Member,
    Report,
    Start,
    StudyKind,
    StudyRecord,
    StudyState,
    TimeSpent,
    Token,
    TrialRecord,
    Waiting,
)

NEWEST_DURATIONS = 100
"""How many of an eval task's newest results its mean duration is taken from."""


class Reader(View, Protocol):
    """A consistent, read-only look at one study; locks nothing."""

    def members(self) -> Sequence[Member]:
        """Return all members by index."""

    def foremost(self, count: int) -> Sequence[Member]:
        """Return the members with the best heads, at most `count`, the best first."""

    def cohorts(self) -> Sequence[Cohort]:
        """Return how many members stand alike, in the order of what they have in common."""

    def time_spent(self) -> TimeSpent:
        """Return where the time of the attempts at trials went, and of the eval tasks, whoever ran them."""

    def trials(
        self, *, member: int | None = None, after: int = 0, limit: int | None = None
    ) -> Sequence[TrialRecord]:
        """Return trials by id, from the first one whose id is above `after`."""

    def newest_trials(self, count: int) -> Sequence[TrialRecord]:
        """Return the trials with the highest ids, newest first."""

    def children(self, trial: int) -> Sequence[TrialRecord]:
        """Return the trials that started from the weights of a trial, by id; looks at all that came after it."""

    def ancestry(self, trial: int, limit: int | None = None) -> Sequence[TrialRecord]:
        """Return a trial, then that whose weights it started from, and so on; the first `limit` of them."""

    def chosen_trials(self, ids: Sequence[int]) -> Sequence[TrialRecord]:
        """Return some trials by id, in the order of the ids; `KeyError` if there is none of an id."""

    def trial_attempts(self, *, after: tuple[int, int] = (0, 0), limit: int | None = None) -> Sequence[Attempt]:
        """Return the attempts of all trials by (trial, token), from the first one above `after`."""

    def reports(self, trial: int, token: int | None = None) -> Sequence[Report]:
        """Return what a trial reported, in order; of its newest attempt that reported unless `token` says."""

    def starts(self) -> Sequence[Start]:
        """Return how the study was started, each time, oldest first."""

    def counts(self) -> dict[str, int]:
        """Return how many trials of kind train are in each state; states without trials are left out."""

    def waiting(self, resting: frozenset[str] = frozenset()) -> Sequence[Waiting]:
        """Return how many pending eval jobs that may start, and do not rest, ask for GPUs or a label, by both."""

    def all_seen(self, *, after: int = 0, limit: int | None = None) -> Sequence[Checkpoint]:
        """Return the checkpoints seen, by id, from the first one whose id is above `after`."""

    def groups(self, *, suite: str | None = None, after: int = 0, limit: int | None = None) -> Sequence[Group]:
        """Return groups by id, from the first one whose id is above `after`; of one suite, or all."""

    def ended_groups(self, since: float) -> Sequence[Group]:
        """Return the groups that ended at a time or later, by that time."""

    def backlog(self, suite: str) -> Backlog:
        """Return what of a suite waits or is being evaluated."""

    def eval_jobs(self, *, after: int = 0, limit: int | None = None) -> Sequence[EvalJob]:
        """Return eval jobs by id, from the first one whose id is above `after`."""

    def mean_duration_s(self, task_identity: str) -> float | None:
        """Return how long a shard of an eval task took on average; None if it never ran.

        The mean of its `NEWEST_DURATIONS` newest results; of those of one time, the slowest count as newest.
        """

    def held_paths(self) -> frozenset[int]:
        """Return ids of the checkpoints seen that a queued or best group refers to."""


class Transaction(Reader, Protocol):
    """A view that can be written; everything is committed at the end, or nothing."""

    def apply(self, commands: Sequence[Command]) -> list[str]:
        """Apply commands in order.

        Returns:
            Names of the checkpoints that `MarkDeleting` commands marked.

        Raises:
            phyla.machine.ParentGone: a `TakeCheckpoint` named one that is not live. Nothing is committed.
        """


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class StoreIdentity:
    """Which store this is; every study's checkpoint directory names the store that owns it.

    Attributes:
        id: random; a store that is moved keeps it, a copied or restored one gets another.
        copied_from: the id of the store that this one is a copy of; None if it is none.
        lasting: whether the store outlives its process.
    """

    id: str
    copied_from: str | None = None
    lasting: bool = True


class Changes(Protocol):
    """Tells when something was committed, so that a worker without work need not ask again and again."""

    @property
    def idle_s(self) -> float:
        """Seconds after which to ask again for work though nothing was committed."""

    def wait(self, seconds: float) -> bool:
        """Return whether something was committed since the last call, after `seconds` at the latest.

        The first call returns at once: what was committed before it is not known.

        Raises:
            StoreUnavailable: the store cannot be reached.
        """

    def close(self) -> None:
        """Release the connection."""


class Store(Protocol):
    """Remembers studies. Safe for use by several threads and, except in memory, several processes."""

    @property
    def url(self) -> str:
        """Where it is, without any password."""

    def hold_on(self, seconds: float) -> None:
        """Wait so long, from now on, for a server that is away; this also shortens a wait that has begun.

        It takes no lock, so a signal handler may call it.
        """

    def identity(self) -> StoreIdentity:
        """Return which store this is; the first call makes its id, and so does one that finds it copied."""

    def renew_identity(self) -> StoreIdentity:
        """Give the store another id, because it was restored in place from a backup, and return it."""

    def create_study(
        self,
        name: str,
        config: JsonObject,
        seed: int = 0,
        population_size: int = 0,
        *,
        kind: StudyKind = StudyKind.POPULATION,
        location: FileName = "",
        source: int | None = None,
    ) -> StudyRecord:
        """Create a study with all members ready, or return the one that exists under that name.

        Args:
            name: unique in the store.
            config: what it is made with.
            seed: root of all randomness of a population.
            population_size: number of members.
            kind: where its checkpoints come from.
            location: the directory that is watched.
            source: id of the study that is watched.
        """

    def tokens(self) -> Sequence[Token]:
        """Return the tokens that open a service on this store, by name."""

    def add_token(self, token: Token) -> None:
        """Add a token; `StateError` if there is one of that name."""

    def revoke_token(self, name: str) -> None:
        """Remove a token, so that it opens nothing any more; `StateError` if there is none of that name."""

    def find_study(self, name: str) -> StudyRecord | None:
        """Return a study by name, or None."""

    def studies(self) -> Sequence[StudyRecord]:
        """Return all studies by id, watched ones included."""

    def delete_study(self, study: int) -> None:
        """Delete a study, with those that watch it and all that is known of them, in one transaction.

        Its id, and those of its jobs, are never given again: whoever still works on it finds it
        gone. Results of evaluations stay where another study has the same checkpoint. That nobody works on it is
        for `Housekeeping.begin_deleting` to see to.

        Raises:
            StudyNotFound: there is no such study.
            StoreBusy: somebody else holds the store for too long.
        """

    def set_state(self, study: int, state: StudyState, message: str | None = None) -> None:
        """Set the state of a study.

        That it is running says that it is resumed: broken trials in a row are counted afresh, and members that
        were given up for broken trials try again.
        """

    def transaction(
        self, study: int, *, exclusive: bool, alone: bool = False, source: int | None = None
    ) -> AbstractContextManager[Transaction]:
        """Open a writing transaction on one study.

        It commits when the block ends and rolls back when it raises.

        Args:
            study: id of the study.
            exclusive: no other exclusive transaction on this study runs at the same time.
            alone: no other transaction that `transaction` opens on this study runs at the same time: those that
                began before have ended, and those that begin later see what this one wrote.
            source: id of the study that this one watches; an exclusive transaction is that on both.

        Raises:
            StoreBusy: somebody else holds the store for too long.
            StoreUnavailable: the store cannot be reached.
        """

    def reader(self, study: int) -> AbstractContextManager[Reader]:
        """Open a consistent look at one study."""

    def changes(self) -> Changes:
        """Return what waits for commits, by this process or another; for one thread."""

    def close(self) -> None:
        """Release every connection."""


def pages(reader: Reader, size: int = 1000) -> Iterator[TrialRecord]:
    """Iterate over all trials of a study without holding them all."""
    after = 0
    while page := reader.trials(after=after, limit=size):
        yield from page
        after = page[-1].id


def pages_of_attempts(reader: Reader, size: int = 1000) -> Iterator[Attempt]:
    """Iterate over the attempts of all trials of a study without holding them all."""
    after = (0, 0)
    while page := reader.trial_attempts(after=after, limit=size):
        yield from page
        after = page[-1].job, page[-1].token


def reports_that_count(reader: Reader, trial: TrialRecord) -> list[Report]:
    """Return the reports of a trial by their steps: of each attempt, up to the step where the next one went on."""
    reports: list[Report] = []
    for token in range(1, trial.token + 1):
        if its := reader.reports(trial.id, token):
            reports = [*(report for report in reports if report.step < its[0].step), *its]
    return sorted(reports, key=lambda report: report.step)
