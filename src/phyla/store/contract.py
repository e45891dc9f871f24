"""The contract of a store; every implementation passes the same suite of tests."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Concatenate, ParamSpec, Protocol, TypeAlias, TypeVar, final

from phyla.machine import Command, Reader, View
from phyla.records import (
    FileName,
    JsonObject,
    Report,
    StudyKind,
    StudyRecord,
    StudyState,
    Token,
    TrialRecord,
)

NEWEST_DURATIONS = 100
"""How many of an eval task's newest results its mean duration is taken from."""


P = ParamSpec("P")
R = TypeVar("R")
Query: TypeAlias = Callable[Concatenate[Reader, P], R]
"""A function that only reads; its arguments and its result can be JSON."""


class Transaction(View, Protocol):
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

        Its id, and those of its jobs, are never reused: a worker that is still on it gets `StudyNotFound`.
        Results of evaluations stay where another study has the same checkpoint. `StudyRecords.begin_deleting`
        checks that no worker is on it.

        Raises:
            StudyNotFound: there is no such study.
            StoreBusy: another process holds the store for too long.
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
            StoreBusy: another process holds the store for too long.
            StoreUnavailable: the store cannot be reached.
        """

    def reader(self, study: int) -> AbstractContextManager[Reader]:
        """Open a consistent look at one study; a store behind a service has none, see `look`."""

    def look(self, study: int, query: "Query[P, R]", /, *args: P.args, **named: P.kwargs) -> R:
        """Ask a query about one study, which is answered in one transaction, here or at a service.

        A service knows those that `phyla.service.reading` lists.

        Raises:
            StudyNotFound: there is no such study.
            UsageError: the service knows no such query.
        """

    def changes(self) -> Changes:
        """Return what waits for commits, by this process or another; for one thread."""

    def close(self) -> None:
        """Release every connection."""


def reports_that_count(reader: Reader, trial: TrialRecord) -> list[Report]:
    """Return the reports of a trial by their steps: of each attempt, up to the step where the next one went on."""
    reports: list[Report] = []
    for token in range(1, trial.token + 1):
        if its := reader.reports(trial.id, token):
            reports = [*(report for report in reports if report.step < its[0].step), *its]
    return sorted(reports, key=lambda report: report.step)
