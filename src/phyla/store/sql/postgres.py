"""PostgreSQL: many hosts, many writers."""

import os
import re
import weakref
from collections.abc import Sequence
from typing import Any, Literal, final

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from phyla.errors import ConfigurationError, StoreBusy, StoreError, StoreUnavailable
from phyla.formatting import mask_password
from phyla.records import StudyRecord
from phyla.settings import Clock
from phyla.store.sql.backend import Backend, SqlSession, StudyLock
from phyla.store.sql.rows import STUDIES
from phyla.store.sql.tables import ONE_STUDY, job_ids

try:
    import psycopg
except ImportError:
    psycopg = None  # type: ignore[assignment]  # an optional dependency that is missing here


OLDEST = 15
LOCK_TIMEOUT_S = 30
IDLE_TIMEOUT_S = 20
"""A suspended or disconnected process loses its transaction before the waiting processes give up."""
ALIVE = {
    "connect_timeout": "10",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "4",
    "tcp_user_timeout": "30000",
}
"""Parameters of connections: a server that vanished without a word is noticed within half a minute."""
SCHEMA_LOCK = 0x7068796C61
"""Advisory lock: the letters of phyla."""

STUDY_LOCK = 0x70687961
"""The first of the two keys of the advisory lock on a study."""
NUMBERS_LOCK = 0x7068796E
"""The first of the two keys of the advisory lock on the numbers of a study's checkpoints."""

# Schemas of one database share advisory locks, and count their studies alike.
_STUDY_KEY = "hashtext(concat(current_schema(), '.', %(study)s::bigint))"
_WAIT_TO_NUMBER = f"SELECT pg_advisory_xact_lock({NUMBERS_LOCK}, {_STUDY_KEY})"
_KEYS = f"{STUDY_LOCK}, {_STUDY_KEY}"
_WAIT_TO_SHARE = f"SELECT pg_advisory_xact_lock_shared({_KEYS})"
_WAIT_TO_BE_ALONE = f"SELECT pg_advisory_xact_lock({_KEYS})"

_WHERE = """
SELECT (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database()),
       'store_identity'::regclass::oid,
       has_function_privilege('pg_catalog.pg_control_system()', 'execute')
"""


_POOLED = "pooled"
"""Key in the notes on a connection: a pooler, such as PgBouncer, is between it and the server."""

_CLOCK = sa.cast(sa.extract("epoch", sa.func.clock_timestamp()), sa.Double)
_NOW = sa.select(_CLOCK)
_NEXT_JOBS = sa.select(job_ids.next_value()).select_from(
    sa.func.generate_series(1, sa.bindparam("count", type_=sa.BigInteger)).alias()
)
_STUDY = ONE_STUDY.add_columns(_CLOCK)
# The clock is read after the lock was waited for, hence the common table expressions.
_LOCKED_STUDY = sa.select(ONE_STUDY.with_for_update(key_share=True).cte("locked"), _CLOCK)

CHANNEL = "phyla_changes"
"""The channel of commit notifications."""

_BUSY = {
    "40001": "another transaction changed the same rows",
    "40P01": "two transactions waited for each other",
    "55P03": f"another transaction held a row for {LOCK_TIMEOUT_S} s",
    "25P03": f"this process was idle for {IDLE_TIMEOUT_S} s inside a transaction",
    "25P04": "this transaction took longer than the server's transaction_timeout allows",
}


@final
class PostgresSession(SqlSession):
    """One open transaction."""

    def __init__(self, backend: Backend, connection: Any, *, write: bool) -> None:
        super().__init__(backend, connection.cursor(), write=write)
        self._connection = connection

    def commit(self) -> None:
        self._connection.commit()
        self._connection.close()

    def rollback(self) -> None:
        try:
            self._connection.rollback()
        except psycopg.Error:
            self._connection.invalidate()
        finally:
            self._connection.close()


@final
class PostgresWatch:
    """Waits for commits by `LISTEN` and `NOTIFY`.

    Args:
        connection: used for nothing else.
    """

    def __init__(self, connection: Any) -> None:
        self._connection = connection.driver_connection
        # It stays open, and must not be given to a transaction afterwards; a detached one forgets its driver's.
        connection.detach()
        self._connection.autocommit = True
        self._listens = False

    def wait(self, seconds: float) -> bool:
        if not self._listens:
            self._connection.execute(f"LISTEN {CHANNEL}")
            self._listens = True
            return True
        if next(self._connection.notifies(timeout=seconds, stop_after=1), None) is None:
            return False
        # One look for all notifications so far.
        for _ in self._connection.notifies(timeout=0):
            pass
        return True

    def close(self) -> None:
        self._connection.close()


def _dispose(engine: sa.Engine, owner: int) -> None:
    """Close unused connections; in a child process they belong to the parent."""
    engine.dispose(close=os.getpid() == owner)


@final
class PostgresBackend(Backend):
    """Opens a database on a server.

    Args:
        url: `postgresql://user@host/database`.
        clock: tells the time instead of the server, for tests.
    """

    served = True

    def __init__(self, url: str, clock: Clock | None = None) -> None:
        if psycopg is None:
            raise ConfigurationError(
                'storage on PostgreSQL needs the driver psycopg: pip install "phyla[postgres]"'
            )
        if re.match(r"[^:]+://[^/@:]*:[^@]*@.*@", url):
            raise ConfigurationError(f"storage {mask_password(url)}: write an @ in the password as %40")
        try:
            parsed = sa.make_url(url)
        except (sa.exc.ArgumentError, ValueError) as error:
            raise ConfigurationError(
                f"storage {mask_password(url)}: write postgresql://user@host:port/database, where the port is a "
                "number, or postgresql://user@/database?host=one:5432&host=two:5432 for several hosts"
            ) from error
        if parsed.drivername not in ("postgresql", "postgres", "postgresql+psycopg"):
            raise ConfigurationError(
                f"storage {parsed.drivername}://...: write postgresql://user@host/database; the driver is psycopg"
            )
        query = {name: value for name, value in parsed.query.items() if name not in ("password", "sslpassword")}
        public_url = sa.URL.create(
            "postgresql", parsed.username, None, parsed.host, parsed.port, parsed.database, query
        )
        self.url = public_url.render_as_string()
        self._clock = clock
        self.driver_errors = (psycopg.Error, sa.exc.TimeoutError)
        engine = sa.create_engine(
            parsed.set(drivername="postgresql+psycopg", query={**ALIVE, **parsed.query}),
            pool_pre_ping=True,
            pool_size=5,
            max_overflow=10,
        )
        sa.event.listen(engine, "connect", _on_connect)
        # Stores that are only read are never closed explicitly.
        weakref.finalize(self, _dispose, engine, os.getpid())
        super().__init__(engine)

    def begin(self, *, write: bool) -> PostgresSession:
        connection = self.engine.raw_connection()
        try:
            if write:
                _require_writable(connection.driver_connection)
            session = PostgresSession(self, connection, write=write)
            if connection.info[_POOLED]:
                session.cursor.execute(_limits("LOCAL"))
            if not write:
                session.cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        except BaseException:
            # Not returned to the pool, which would log a traceback for a lost connection.
            connection.invalidate()
            raise
        return session

    def study(self, session: SqlSession, study: int, lock: StudyLock | None) -> tuple[StudyRecord | None, float]:
        if lock in ("shared", "alone"):
            # An advisory lock, because transactions that share a row lock overtake one that waits to be alone. It
            # is a separate statement, so that the next one sees everything that was committed while this one
            # waited.
            session.cursor.execute(_WAIT_TO_BE_ALONE if lock == "alone" else _WAIT_TO_SHARE, {"study": study})
        statement = _LOCKED_STUDY if lock in ("exclusive", "alone") else _STUDY
        row = session.row(statement, {"study": study})
        if row is None:
            return None, 0.0
        return STUDIES.record(row[:-1]), float(row[-1]) if self._clock is None else self._clock()

    def place(self, session: SqlSession) -> str:
        cursor = session.cursor
        cursor.execute(_WHERE)
        database, table, may_ask = cursor.fetchone()
        server = "unknown"
        if may_ask:
            cursor.execute("SELECT system_identifier FROM pg_control_system()")
            server = str(cursor.fetchone()[0])
        return f"server {server}, database {database}, table {table}"

    def now(self, session: SqlSession) -> float:
        return float(session.run(_NOW, {}).fetchone()[0]) if self._clock is None else self._clock()

    def new_job_ids(self, session: SqlSession, count: int) -> Sequence[int]:
        return [key for (key,) in session.run(_NEXT_JOBS, {"count": count}).fetchall()]

    def lock_numbers(self, session: SqlSession, study: int) -> None:
        session.cursor.execute(_WAIT_TO_NUMBER, {"study": study})

    def lock_schema(self, connection: sa.Connection) -> None:
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({SCHEMA_LOCK})")

    def forget_connections(self) -> None:
        self.engine.dispose(close=False)

    def watch(self) -> "PostgresWatch":
        return PostgresWatch(self.engine.raw_connection())

    def announce(self, session: SqlSession) -> None:
        session.cursor.execute(f"NOTIFY {CHANNEL}")

    def close(self) -> None:
        self.engine.dispose()

    def insert(self, table: sa.Table) -> postgresql.Insert:
        return postgresql.insert(table)

    def translate_error(self, error: Exception) -> StoreError:
        if isinstance(error, sa.exc.TimeoutError):
            return StoreBusy(
                f"{self.url}: every connection of this process was in use for 30 s; use fewer threads"
            )
        state = getattr(error, "sqlstate", None) or ""
        message = " ".join(str(error).split())
        if state == "23505" and error.diag.constraint_name == "eval_groups_one_best":  # type: ignore[attr-defined]  # psycopg's
            return StoreBusy(f"{self.url}: two evaluations became the best of a suite at once; try again")
        if state in _BUSY:
            return StoreBusy(f"{self.url}: {_BUSY[state]}; nothing was changed, try again")
        if state == "42501":
            return StoreError(
                f"{self.url}: {message}; GRANT the role SELECT, INSERT, UPDATE and DELETE on all tables of the "
                "schema, and USAGE on its sequences. To look, SELECT is enough; to make the tables, it needs "
                "CREATE on the schema"
            )
        # libpq reports no SQLSTATE when a connection is refused.
        if re.search("too many (clients|connections)|connection slots", message):
            return StoreUnavailable(
                f"{self.url}: the server has no connection left ({message}); raise its max_connections (a worker "
                "takes 2), or run fewer workers"
            )
        if state == "53100":
            return StoreUnavailable(f"{self.url}: the server's disk is full: free some space on it")
        if state == "25006":
            return StoreUnavailable(
                f"{self.url}: the server is a standby, or read-only ({message}); connect to the primary (if you "
                "name several hosts: target_session_attrs=read-write), or turn off default_transaction_read_only"
            )
        if state == "42P01":
            return StoreError(
                f"{self.url}: tables of phyla are gone ({message}): another database may have taken its place. "
                "Restore it, or correct the URL; checkpoints stay as they are"
            )
        if state == "57014":
            return StoreUnavailable(
                f"{self.url}: the server ended a statement ({message}); if its statement_timeout is short, "
                "raise it: ALTER ROLE ... SET statement_timeout = '60s'"
            )
        # Without a state the connection itself failed; class 08 and 57 are the server going away, 28 and 3D
        # are a refused log-in and a missing database.
        if isinstance(error, psycopg.OperationalError) and (not state or state[:2] in ("08", "57", "28", "3D")):
            return StoreUnavailable(
                f"{self.url}: {message}; check that the server runs, that the database exists and that "
                "user and password are right"
            )
        return StoreError(f"{self.url}: {type(error).__name__}: {message}")


def _require_writable(connection: Any) -> None:
    """Reject a standby, or a server that was made read-only, before anything is written: workers wait."""
    # The server reports changes of these by itself.
    for name in ("in_hot_standby", "default_transaction_read_only"):
        if connection.info.parameter_status(name) == "on":
            raise psycopg.errors.ReadOnlySqlTransaction(f"{name} is on")


def _limits(scope: Literal["SESSION", "LOCAL"]) -> str:
    """Return statements that limit how long a transaction waits for a lock, this process or the network."""
    return (
        f"SET {scope} lock_timeout = '{LOCK_TIMEOUT_S}s'; "
        f"SET {scope} idle_in_transaction_session_timeout = '{IDLE_TIMEOUT_S}s'; "
        f"SET {scope} tcp_user_timeout = '{IDLE_TIMEOUT_S}s'"
    )


def _on_connect(connection: Any, record: Any) -> None:
    version = connection.info.server_version // 10_000
    if version < OLDEST:
        raise ConfigurationError(f"the server runs PostgreSQL {version}; phyla needs {OLDEST} or newer")
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        (process,) = cursor.fetchone()
        # A pooler makes up the number of the process. It may give each transaction another session of the server,
        # which has other clients' settings, and other statements under the names of those that psycopg prepares.
        record.info[_POOLED] = pooled = process != connection.info.backend_pid
        if pooled:
            connection.prepare_threshold = None
        else:
            cursor.execute(_limits("SESSION"))
    connection.commit()
