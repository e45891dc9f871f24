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
"""Number of newest results from which the mean duration of an eval task is computed."""


P = ParamSpec("P")
R = TypeVar("R")
Query: TypeAlias = Callable[Concatenate[Reader, P], R]
"""A read-only function whose arguments and result can be JSON."""


class Transaction(View, Protocol):
    """A writable view; all changes commit at the end, or none."""

    def apply(self, commands: Sequence[Command]) -> list[str]:
        """Apply commands in order.

        Returns:
            Names of the checkpoints that `MarkDeleting` commands marked.

        Raises:
            phyla.machine.ParentGone: a `TakeCheckpoint` named a checkpoint that is not live. Nothing is committed.
        """


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class StoreIdentity:
    """The identity of a store; the checkpoint directory of a study names the store that owns it.

    Attributes:
        id: random; a moved store keeps it, a copied or restored store gets another.
        copied_from: the id of the store of which this is a copy, if it is one.
        lasting: whether the store outlives its process.
    """

    id: str
    copied_from: str | None = None
    lasting: bool = True


class Changes(Protocol):
    """Notifies of commits, so that workers without work need not poll."""

    @property
    def idle_s(self) -> float:
        """Seconds after which to ask for work again without a commit."""

    def wait(self, seconds: float) -> bool:
        """Wait at most `seconds`; return whether there was a commit since the last call.

        The first call returns at once, because earlier commits are unknown.

        Raises:
            StoreUnavailable: the store cannot be reached.
        """

    def close(self) -> None:
        """Release the connection."""


class Store(Protocol):
    """Stores studies. Safe for use by several threads and, except in memory, several processes."""

    @property
    def url(self) -> str:
        """Its URL without password."""

    def hold_on(self, seconds: float) -> None:
        """Set how long to wait for an unreachable server; this also shortens a wait in progress.

        It takes no lock, so a signal handler may call it.
        """

    def identity(self) -> StoreIdentity:
        """Return the identity; the first call creates the id, as does the first call after a copy."""

    def renew_identity(self) -> StoreIdentity:
        """Create and return a new identity, after the store was restored in place from a backup."""

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
        """Create a study with all members ready, or return the existing study of that name.

        Args:
            name: unique in the store.
            config: its configuration.
            seed: root of all randomness of a population.
            population_size: number of members.
            kind: the source of its checkpoints.
            location: the watched directory.
            source: id of the watched study.
        """

    def tokens(self) -> Sequence[Token]:
        """Return the tokens for a service on this store, by name."""

    def add_token(self, token: Token) -> None:
        """Add a token; `StateError` if the name is taken."""

    def revoke_token(self, name: str) -> None:
        """Revoke a token; `StateError` if there is none of that name."""

    def find_study(self, name: str) -> StudyRecord | None:
        """Return a study by name, or None."""

    def studies(self) -> Sequence[StudyRecord]:
        """Return all studies by id, watched ones included."""

    def delete_study(self, study: int) -> None:
        """Delete a study, the studies that watch it, and all their records, in one transaction.

        Its id and those of its jobs are never reused: a worker that still has its jobs gets `StudyNotFound`.
        Evaluation results are kept if another study has the same checkpoint. `StudyRecords.begin_deleting` checks
        that no worker has a job of it.

        Raises:
            StudyNotFound: there is no such study.
            StoreBusy: another process holds the store for too long.
        """

    def set_state(self, study: int, state: StudyState, message: str | None = None) -> None:
        """Set the state of a study.

        Setting it to running resumes the study: the count of consecutive broken trials restarts, and members that
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
            alone: no other writing transaction on this study runs at the same time: earlier ones have ended, and
                later ones see the changes of this one.
            source: id of the study that this one watches; an exclusive transaction is exclusive on both.

        Raises:
            StoreBusy: another process holds the store for too long.
            StoreUnavailable: the store cannot be reached.
        """

    def reader(self, study: int) -> AbstractContextManager[Reader]:
        """Open a consistent view of one study; not available through a service, see `look`."""

    def look(self, study: int, query: "Query[P, R]", /, *args: P.args, **named: P.kwargs) -> R:
        """Answer a query about one study in one transaction, here or at a service.

        A service knows the queries that `phyla.service.reading` lists.

        Raises:
            StudyNotFound: there is no such study.
            UsageError: the service knows no such query.
        """

    def changes(self) -> Changes:
        """Return an object that waits for commits of any process; for use by one thread."""

    def close(self) -> None:
        """Release every connection."""


def reports_that_count(reader: Reader, trial: TrialRecord) -> list[Report]:
    """Return the valid reports of a trial by step: of each attempt up to the step where the next continued."""
    reports: list[Report] = []
    for token in range(1, trial.token + 1):
        if later := reader.reports(trial.id, token):
            reports = [*(report for report in reports if report.step < later[0].step), *later]
    return sorted(reports, key=lambda report: report.step)
