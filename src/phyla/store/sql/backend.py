"""What a database has to offer the store."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias

import sqlalchemy as sa

from phyla.errors import StoreError
from phyla.records import RunRecord, StudyRecord
from phyla.store.sql.evaluation_rows import Runs
from phyla.store.sql.rows import Members
from phyla.store.sql.statements import Statements

StudyLock: TypeAlias = Literal["shared", "exclusive", "alone"]
"""What a transaction keeps off a study: only one that is to be alone, other exclusive ones, all others."""


class Cursor(Protocol):
    """The part of a driver's cursor that is used."""

    @property
    def rowcount(self) -> int:
        """How many rows the last statement changed."""
        ...

    def execute(self, statement: str, parameters: Mapping[str, Any] = ..., /) -> object:
        """Run a statement."""
        ...

    def executemany(self, statement: str, parameters: Sequence[Mapping[str, Any]], /) -> object:
        """Run a statement once per set of parameters."""
        ...

    def fetchone(self) -> Any:
        """Return the next row as a tuple, or None."""
        ...

    def fetchall(self) -> list[Any]:
        """Return the remaining rows."""
        ...


class Session(Protocol):
    """One open transaction on one connection."""

    @property
    def cursor(self) -> Cursor:
        """Runs statements inside the transaction."""
        ...

    def commit(self) -> None:
        """Make everything durable and give the connection back."""
        ...

    def rollback(self) -> None:
        """Undo everything and give the connection back; never raises."""
        ...


class Watch(Protocol):
    """A connection that learns of commits."""

    def wait(self, seconds: float) -> None:
        """Return once something was committed since the last call; see `phyla.store.Changes`."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


class Backend(Protocol):
    """A kind of database: how to connect, lock, tell the time and explain errors."""

    @property
    def url(self) -> str:
        """Where it is, without any password."""
        ...

    @property
    def lasting(self) -> bool:
        """Whether it outlives its process."""
        ...

    @property
    def engine(self) -> sa.Engine:
        """Keeps the connections."""
        ...

    @property
    def statements(self) -> Statements:
        """SQL for transactions that write."""
        ...

    @property
    def reading(self) -> Statements:
        """SQL for transactions that only look: the same, without locks."""
        ...

    @property
    def one_writer(self) -> bool:
        """Whether a transaction that writes excludes every other one."""
        ...

    @property
    def runs(self) -> Runs:
        """Makes records of runs."""
        ...

    @property
    def members(self) -> Members:
        """Makes records of members."""
        ...

    @property
    def driver_errors(self) -> tuple[type[Exception], ...]:
        """What the driver and the pool raise."""
        ...

    def translated(self, error: Exception) -> StoreError:
        """Return what an error of the driver means and what to do."""
        ...

    def begin(self, *, write: bool) -> Session:
        """Open a transaction; one that does not write sees one state of the database throughout."""
        ...

    def study(self, cursor: Cursor, study: int, lock: StudyLock | None) -> tuple[StudyRecord | None, float]:
        """Return a study as it is once it is locked, and the time."""
        ...

    def run(self, cursor: Cursor, run: int, *, exclusive: bool) -> tuple[RunRecord | None, float]:
        """Return a run, locked if the transaction is exclusive, and the time."""
        ...

    def place(self, cursor: Cursor) -> str:
        """Return where the database is: the same wherever it is moved as a whole, another one for a copy."""
        ...

    def now(self, cursor: Cursor) -> float:
        """Return the time."""
        ...

    def new_trial_id(self, cursor: Cursor) -> int:
        """Return an id that no other trial has or gets."""
        ...

    def keep_ids(self, cursor: Cursor) -> None:
        """Remember, before rows are deleted, which ids were given, so that they are never given again."""
        ...

    def fresh_id(self, cursor: Cursor, table: str, key: int) -> int:
        """Return the id of a row just inserted, after changing it if a deleted row had it."""
        ...

    def revision(self, connection: sa.Connection) -> str | None:
        """Return the revision of the schema, or None before the first one."""
        ...

    def lock_schema(self, connection: sa.Connection) -> None:
        """Begin a transaction in which nobody else changes the schema."""
        ...

    def watch(self) -> Watch:
        """Open a connection that learns of commits."""
        ...

    def announce(self, cursor: Cursor) -> None:
        """Let those who wait learn of the transaction when it commits."""
        ...

    def close(self) -> None:
        """Close every connection."""
        ...

    def forget_connections(self) -> None:
        """Drop the pool without closing what it holds: after a fork it belongs to the parent."""
        ...
