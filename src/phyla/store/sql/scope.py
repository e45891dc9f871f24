"""Common base of the parts of a transaction on a study."""

from typing import Any, TypeVar

import sqlalchemy as sa

from phyla.records import StudyRecord
from phyla.store.sql.backend import SqlSession
from phyla.store.sql.rows import Row, Rows

R = TypeVar("R")

NEVER = float("-inf")
NO_LIMIT = 2**62
"""Rows of a page that has no limit."""
_TEXTS = frozenset(("name", "worker", "suite", "identity", "task_identity", "labels", "resting"))
_TIMES = frozenset(("now", "since", "expires_after"))


def parameter(name: str) -> "sa.BindParameter[Any]":
    """Return a bound parameter of a statement, typed by its name."""
    if name in _TEXTS:
        return sa.bindparam(name, type_=sa.Text)
    return sa.bindparam(name, type_=sa.Double if name in _TIMES else sa.BigInteger)


class Scope:
    """Runs statements of a session for one study.

    Args:
        session: inside an open transaction.
        study: the study's row, kept up to date.
        now: the database's time.
    """

    def __init__(self, session: SqlSession, study: StudyRecord, now: float) -> None:
        self._session = session
        self._study = study
        self._now = now
        # The checkpoints of a study that watches another one are the other's.
        self._own = {"study": study.id, "owner": study.source or study.id}

    def study(self) -> StudyRecord:
        return self._study

    def now(self) -> float:
        return self._now

    def _first(self, rows: Rows[R], statement: sa.Executable, **key: Any) -> R | None:
        return self._session.first(rows, statement, {**self._own, **key})

    def _hold(self, rows: Rows[R], statement: sa.Executable, **key: Any) -> R | None:
        """Return a record that a command may change."""
        return self._session.hold(rows, self._first(rows, statement, **key))

    def _existing(self, record: R | None, kind: str, key: int) -> R:
        if record is None:
            raise KeyError(f"study {self._study.id} has no {kind} {key}")
        return record

    def _all(self, rows: Rows[R], statement: sa.Executable, **key: Any) -> list[R]:
        return self._session.all(rows, statement, {**self._own, **key})

    def _rows(self, statement: sa.Executable, **key: Any) -> list[Row]:
        rows: list[Row] = self._run(statement, **key).fetchall()
        return rows

    def _value(self, statement: sa.Executable, **key: Any) -> Any:
        """Return the first value of the first row; None without rows."""
        row = self._session.row(statement, {**self._own, **key})
        return None if row is None else row[0]

    def _run(self, statement: sa.Executable, **key: Any) -> Any:
        return self._session.run(statement, {**self._own, **key})
