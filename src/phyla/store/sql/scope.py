"""What transactions on a study and on a run have in common."""

from typing import Any, TypeVar

import sqlalchemy as sa

from phyla.store.sql.backend import Session
from phyla.store.sql.rows import Row, Rows

R = TypeVar("R")

NEVER = float("-inf")
_TEXTS = frozenset(("name", "worker", "suite", "identity", "task_identity"))
_TIMES = frozenset(("now", "since", "expires_after"))


def given(name: str) -> "sa.BindParameter[Any]":
    """Return the parameter of a statement that is given when it runs, typed by what it is called."""
    if name in _TEXTS:
        return sa.bindparam(name, type_=sa.Text)
    return sa.bindparam(name, type_=sa.Double if name in _TIMES else sa.BigInteger)


class Scope:
    """Asks statements of a session, each of which is told whose study or run it is about.

    Args:
        session: inside an open transaction.
        now: the database's time.
        own: the id of the study, or run, by its parameter.
    """

    def __init__(self, session: Session, now: float, **own: int) -> None:
        self._session = session
        self._now = now
        self._own = own

    def now(self) -> float:
        """Return the database's time, one value throughout the transaction."""
        return self._now

    def _one(self, rows: Rows[R], statement: sa.Executable, **key: Any) -> R | None:
        return self._session.one(rows, statement, {**self._own, **key})

    def _all(self, rows: Rows[R], statement: sa.Executable, **key: Any) -> list[R]:
        return self._session.all(rows, statement, {**self._own, **key})

    def _rows(self, statement: sa.Executable, **key: Any) -> list[Row]:
        found: list[Row] = self._run(statement, **key).fetchall()
        return found

    def _value(self, statement: sa.Executable, **key: Any) -> Any:
        """Return the first value of the first row, or None."""
        row = self._session.row(statement, {**self._own, **key})
        return None if row is None else row[0]

    def _run(self, statement: sa.Executable, **key: Any) -> Any:
        return self._session.run(statement, {**self._own, **key})
