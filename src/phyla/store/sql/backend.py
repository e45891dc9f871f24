"""Common to all databases: compile statements once, run them on the driver, return records."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

import sqlalchemy as sa

from phyla.errors import StoreError
from phyla.records import Member, StudyRecord
from phyla.store.sql.rows import MEMBERS, Row, Rows, Values

R = TypeVar("R")

StudyLock: TypeAlias = Literal["shared", "exclusive", "alone"]
"""Transactions that a lock excludes from a study: only those that must be alone, exclusive ones, all others."""


_TEXTS: dict[str, dict[bool, dict[Hashable, str]]] = {}
"""SQL by kind of database: statements are compiled once in a process, however many stores it opens."""


class Watch(Protocol):
    """A connection that learns of commits."""

    def wait(self, seconds: float) -> bool:
        """Return whether something was committed since the last call; see `phyla.store.Changes`."""

    def close(self) -> None:
        """Close the connection."""


class SqlSession(ABC):
    """One open transaction: runs statements on the driver's cursor.

    Execution through SQLAlchemy costs about 20 us even for a cached statement, the driver's own 2 to 5 us; a claim
    with its completion runs some twenty statements.

    Args:
        backend: the database.
        cursor: of the driver.
        write: whether rows are locked where a statement says so.
    """

    def __init__(self, backend: "Backend", cursor: Any, *, write: bool) -> None:
        self.backend = backend
        self.cursor = cursor
        self.write = write
        self._texts = backend.texts[write]
        self._held: dict[tuple[sa.Table, Hashable], Any] = {}

    @abstractmethod
    def commit(self) -> None:
        """Make everything durable and give the connection back."""

    @abstractmethod
    def rollback(self) -> None:
        """Undo everything and give the connection back; never raises."""

    def run(self, statement: sa.Executable, values: Values) -> Any:
        """Run a statement; return the cursor."""
        self.cursor.execute(self._text(statement, lambda: statement), values)
        return self.cursor

    def _text(self, key: Hashable, make: Callable[[], Any], columns: Sequence[str] | None = None) -> str:
        """Return the SQL of a statement, which is made and compiled when its key is first used in this process."""
        text = self._texts.get(key)
        if text is None:
            text = self._texts[key] = self.backend.compile_statement(make(), columns, locks=self.write)
        return text

    def row(self, statement: sa.Executable, values: Values) -> Row | None:
        """Return the first row that a statement gives, or None."""
        row: Row | None = self.run(statement, values).fetchone()
        return row

    def all(self, rows: Rows[R], statement: sa.Executable, values: Values) -> list[R]:
        """Return the records that a statement gives."""
        record = rows.record
        return [record(row) for row in self.run(statement, values).fetchall()]

    def first(self, rows: Rows[R], statement: sa.Executable, values: Values) -> R | None:
        """Return the first record that a statement gives, or None."""
        row = self.row(statement, values)
        return None if row is None else rows.record(row)

    def hold(self, rows: Rows[R], record: R | None) -> R | None:
        """Remember a record that was read: `update` writes only what differs from it."""
        if record is not None:
            self._held[rows.table, rows.key_of(record)] = record
        return record

    def insert(self, rows: Rows[R], record: R, *, keep: bool = False) -> None:
        """Insert a record; with `keep`, an existing one of the same key stays."""

        def make() -> Any:
            statement = self.backend.insert(rows.table).inline()
            return statement.on_conflict_do_nothing() if keep else statement

        self.cursor.execute(self._text((rows, keep), make, rows.columns), rows.values(record))

    def insert_new(self, rows: Rows[R], record: R) -> int:
        """Insert a record that has no id yet; return its id."""
        table = rows.table
        text = self._text((rows, "new"), lambda: table.insert().returning(table.c.id), rows.without_id)
        self.cursor.execute(text, rows.values(record))
        return int(self.cursor.fetchone()[0])

    def insert_once(self, rows: Rows[R], record: R) -> int | None:
        """Insert a record without an id; return its id, or None if a conflicting record exists, which stays."""

        def make() -> Any:
            return self.backend.insert(rows.table).on_conflict_do_nothing().returning(rows.table.c.id)

        self.cursor.execute(self._text((rows, "once"), make, rows.without_id), rows.values(record))
        row = self.cursor.fetchone()
        return None if row is None else int(row[0])

    def insert_all(self, rows: Rows[R], records: Iterable[R]) -> None:
        """Insert records."""
        values = [rows.values(record) for record in records]
        if values:
            text = self._text((rows, "all"), lambda: rows.table.insert().inline(), rows.columns)
            self.cursor.executemany(text, values)

    def put(self, table: sa.Table, values: Values) -> None:
        """Insert a row; an existing one of the same key gets its values."""

        def make() -> Any:
            statement, key = self.backend.insert(table).inline(), table.primary_key.columns
            others = {column.name: statement.excluded[column.name] for column in table.c if column.name not in key}
            return statement.on_conflict_do_update(index_elements=key.keys(), set_=others)

        self.cursor.execute(self._text((table, "put"), make, table.c.keys()), values)

    def update(self, rows: Rows[R], record: R) -> None:
        """Write a record to its row: what differs from the record that is remembered, or everything."""
        key = rows.key_of(record)
        old: R | None = self._held.get((rows.table, key))
        values = rows.values(record) if old is None else rows.write_changes(old, record)
        for name in rows.key:
            values.pop(name, None)
        if values:
            self.set(rows, key if type(key) is tuple else (key,), values)
        self._held[rows.table, key] = record

    def set(self, rows: Rows[Any], key: tuple[Any, ...], values: Values) -> None:
        """Write stored values to the row that has a key."""
        columns = tuple(values)

        def make() -> Any:
            is_row = [rows.table.c[name] == sa.bindparam(f"key_{name}") for name in rows.key]
            return rows.table.update().where(*is_row)

        text = self._text((rows, columns), make, columns)
        for name, value in zip(rows.key, key, strict=True):
            values[f"key_{name}"] = value
        self.cursor.execute(text, values)


class Backend(ABC):
    """A kind of database: how to connect, lock, tell the time and explain errors.

    Args:
        engine: keeps the connections.

    Attributes:
        url: where it is, without any password.
        lasting: whether it outlives its process.
        served: whether it is a server, which may be away for a while.
        one_writer: whether a transaction that writes is alone, so that what it has read stays as it is.
        driver_errors: what the driver and the pool raise.
        texts: SQL by statement, for transactions that look and those that write.
    """

    url: str
    lasting = True
    served = False
    one_writer = False
    driver_errors: tuple[type[Exception], ...]

    def __init__(self, engine: sa.Engine) -> None:
        self.engine = engine
        self.texts = _TEXTS.setdefault(engine.dialect.name, {False: {}, True: {}})
        self._members: dict[Any, tuple[Row, Member]] = {}

    def compile_statement(self, statement: Any, columns: Sequence[str] | None = None, *, locks: bool) -> str:
        """Return the SQL of a statement: constants are written out, and rows locked only if asked for."""
        base = self.engine.dialect.statement_compiler

        class Compiler(base):  # type: ignore[valid-type,misc]  # the dialect's
            def visit_bindparam(self, bindparam: Any, **options: Any) -> str:
                if not bindparam.required:
                    options["literal_binds"] = True
                return str(super().visit_bindparam(bindparam, **options))

            def for_update_clause(self, select: Any, **options: Any) -> str:
                return str(super().for_update_clause(select, **options)) if locks else ""

        return str(Compiler(self.engine.dialect, statement, column_keys=columns))

    def member(self, row: Row) -> Member:
        """Return the member of a row: the same one as long as the row is the same, as most of a population is.

        Rows are compared, not versions, so it does not matter in which order transactions committed.
        """
        row = tuple(row)
        known = self._members.get(row[:2])
        if known is not None and known[0] == row:
            return known[1]
        member = MEMBERS.record(row)
        self._members[row[:2]] = row, member
        return member

    @abstractmethod
    def insert(self, table: sa.Table) -> Any:
        """Return an INSERT of SQLAlchemy's dialect for this database, which has ON CONFLICT."""

    @abstractmethod
    def translate_error(self, error: Exception) -> StoreError:
        """Return what an error of the driver means and what to do."""

    @abstractmethod
    def begin(self, *, write: bool) -> SqlSession:
        """Open a transaction; one that does not write sees one state of the database throughout."""

    @abstractmethod
    def study(self, session: SqlSession, study: int, lock: StudyLock | None) -> tuple[StudyRecord | None, float]:
        """Return a study as it is once it is locked, and the time."""

    @abstractmethod
    def place(self, session: SqlSession) -> str:
        """Return where the database is: the same wherever it is moved as a whole, another one for a copy."""

    @abstractmethod
    def now(self, session: SqlSession) -> float:
        """Return the time."""

    @abstractmethod
    def new_job_ids(self, session: SqlSession, count: int) -> Sequence[int]:
        """Return unique ids for new jobs."""

    @abstractmethod
    def lock_numbers(self, session: SqlSession, study: int) -> None:
        """Lock the numbering of a study's observed checkpoints."""

    @abstractmethod
    def lock_schema(self, connection: sa.Connection) -> None:
        """Begin a transaction with an exclusive lock on the schema."""

    @abstractmethod
    def watch(self) -> Watch:
        """Open a connection that learns of commits."""

    @abstractmethod
    def announce(self, session: SqlSession) -> None:
        """Notify waiting processes on commit."""

    @abstractmethod
    def close(self) -> None:
        """Close every connection."""

    @abstractmethod
    def forget_connections(self) -> None:
        """Drop the connections without closing them: after a fork they belong to the parent."""
