"""SQLite: one file, one host, one writer at a time."""

import errno
import fcntl
import os
import sqlite3
import time
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, final

import sqlalchemy as sa
from sqlalchemy.dialects import sqlite

from phyla.errors import ConfigurationError, StoreBusy, StoreError, StoreUnavailable, advice_on
from phyla.records import StudyRecord
from phyla.settings import Clock
from phyla.store.sql.backend import Backend, SqlSession, StudyLock
from phyla.store.sql.rows import STUDIES
from phyla.store.sql.tables import ONE_STUDY
from phyla.store.sqlite_url import read_sqlite_url, sqlite_url
from phyla.system.file_systems import network_file_system

BUSY_TIMEOUT_S = 30.0
LOOK_S, MOST_LOOK_S = 0.004, 0.25
"""How often a worker that waits looks whether something was committed, at first and after a while."""
PATIENCE = 0.02
"""Part of the time since the last commit by which the next one may be seen late."""
_OF_PARENTS: list[object] = []
"""Connections of a parent process: a child made by fork must not even close them."""
CACHE_KIB = 16 * 1024
SYNCHRONOUS = "FULL"
"""A commit is on the disk when it returns, so that a power cut undoes nothing that was promised."""
PAGES_BETWEEN_CHECKPOINTS = 4000
"""A checkpoint of the write-ahead log costs some milliseconds; SQLite's default of 1000 pages makes it so
frequent that it shows in the 99th percentile of a claim."""


@final
class _Turn:
    """The right to write next, by locks on two files beside the database.

    The holder of the first one is next and waits for the second one. A process that has just written finds the
    first one taken, and so cannot overtake the waiting ones.
    """

    __slots__ = ("_next", "_now")

    def __init__(self, path: Path) -> None:
        self._next = _lock_file(f"{path}.turn")
        self._now = _lock_file(f"{path}.lock")

    def wait(self) -> None:
        fcntl.flock(self._next, fcntl.LOCK_EX)
        try:
            fcntl.flock(self._now, fcntl.LOCK_EX)
        finally:
            fcntl.flock(self._next, fcntl.LOCK_UN)

    def end(self) -> None:
        fcntl.flock(self._now, fcntl.LOCK_UN)

    def close(self) -> None:
        os.close(self._next)
        os.close(self._now)


def _lock_file(path: str) -> int:
    # Every connection has descriptors of its own, so that threads exclude each other as processes do.
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)


@final
class SqliteSession(SqlSession):
    """One open transaction; holds the turn to write if it writes."""

    def __init__(
        self, backend: Backend, connection: Any, turn: "_Turn | None", idle: deque[Any], *, write: bool
    ) -> None:
        super().__init__(backend, connection.cursor(), write=write)
        self._connection = connection
        self._turn = turn
        self._idle = idle

    def commit(self) -> None:
        self.cursor.execute("COMMIT")
        self._release()

    def rollback(self) -> None:
        try:
            if self._connection.in_transaction:
                self.cursor.execute("ROLLBACK")
        except sqlite3.Error:
            if self._turn is not None:
                self._turn.end()
            self._connection.invalidate()
        else:
            self._release()

    def _release(self) -> None:
        if self._turn is not None:
            self._turn.end()
        self._idle.append(self._connection)


@final
class SqliteWatch:
    """Sees commits by other connections: SQLite counts them in shared memory, so looking takes microseconds.

    Args:
        connection: used for nothing else.
    """

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._seen: int | None = None
        self._changed_at = 0.0

    def wait(self, seconds: float) -> bool:
        until = time.monotonic() + seconds
        while (commits := self._commits()) == self._seen and (remaining := until - (now := time.monotonic())) > 0:
            pause_s = min(max(LOOK_S, PATIENCE * (now - self._changed_at)), MOST_LOOK_S)
            time.sleep(min(pause_s, remaining))
        if commits == self._seen:
            return False
        self._seen, self._changed_at = commits, time.monotonic()
        return True

    def _commits(self) -> int:
        return int(self._connection.execute("PRAGMA data_version").fetchone()[0])

    def close(self) -> None:
        self._connection.close()


class AnySqlite(Backend):
    """A database of SQLite, wherever it is.

    Args:
        engine: keeps the connections.
        clock: tells the time; every process that uses the database runs on the same host.

    Attributes:
        label: the place of the database in error messages.
    """

    label: str
    one_writer = True
    driver_errors = (sqlite3.Error, OSError)

    def __init__(self, engine: sa.Engine, clock: Clock) -> None:
        super().__init__(engine)
        self._clock = clock
        self._last_job_id = 0

    def study(self, session: SqlSession, study: int, lock: StudyLock | None) -> tuple[StudyRecord | None, float]:
        return session.first(STUDIES, ONE_STUDY, {"study": study}), self._clock()

    def now(self, session: SqlSession) -> float:
        return self._clock()

    def new_job_ids(self, session: SqlSession, count: int) -> Sequence[int]:
        row = session.cursor.execute("SELECT seq FROM sqlite_sequence WHERE name = 'jobs'").fetchone()
        first = max(0 if row is None else row[0], self._last_job_id) + 1
        self._last_job_id = first + count - 1
        return range(first, first + count)

    def lock_numbers(self, session: SqlSession, study: int) -> None:
        """Do nothing: every writing transaction is alone."""

    def lock_schema(self, connection: sa.Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    def insert(self, table: sa.Table) -> sqlite.Insert:
        return sqlite.insert(table)

    def announce(self, session: SqlSession) -> None:
        """Do nothing: every commit shows."""

    def translate_error(self, error: Exception) -> StoreError:
        # An extended result code carries the primary one in its low byte.
        code = (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF
        advice = _ADVICE.get(code)
        if advice is not None:
            return StoreUnavailable(f"{self.label}: {error}; {advice}")
        return StoreError(f"{self.label}: {type(error).__name__}: {error}")


@final
class SqliteBackend(AnySqlite):
    """Opens a database file.

    Writers take turns with locks on files beside the database: unlike SQLite's own waiting, which sleeps and
    looks again, they hand over at once and starve no process.

    A file that may only be read, such as another user's, can be looked at.

    Args:
        url: `sqlite:///path`; `?`, `%` and `#` in the path are written `%3F`, `%25` and `%23`.
        clock: tells the time; every process that uses the file runs on the same host.
        busy_timeout_s: how long to wait for a foreign program that holds the database.
    """

    def __init__(self, url: str, clock: Clock, *, busy_timeout_s: float = BUSY_TIMEOUT_S) -> None:
        self._path = read_sqlite_url(url).absolute()
        # Connections between two transactions. To give them back to the engine's pool and take them out again
        # would cost as much as several statements, for resets that are not needed here.
        self._idle: deque[Any] = deque()
        self._busy_timeout_s = busy_timeout_s
        network = network_file_system(self._path)
        if network is not None:
            raise ConfigurationError(
                f"{self._path} is on a network file system ({network}), where SQLite loses data when two hosts "
                'write. Put the file on a local disk, for example storage="sqlite:////var/tmp/phyla.db"; use a '
                'server: storage="postgresql://user@host/database"; or let one service have it, with phyla serve '
                "--publish, and reach that with --server .../service.json"
            )
        try:
            _make_folder(self._path.parent)
            if not self._path.exists():
                # SQLite would let only its owner write, whatever the umask says.
                os.close(os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o666))
        except OSError as error:
            raise StoreUnavailable(
                f"cannot make the folder {self._path.parent}, or the database in it: {error.strerror}; name "
                "another place or make it writable"
            ) from error
        try:
            readable = self._path.is_file() and (not os.access(self._path, os.W_OK) or self._no_room())
            self._file = self._inode()
        except OSError as error:
            raise self.translate_error(error) from error
        if readable:
            self._idle = deque(maxlen=0)
        engine = sa.create_engine(
            sa.URL.create("sqlite", database=f"{self._path.as_uri()}?mode=rwc", query={"uri": "true"}),
            connect_args={
                "isolation_level": None,
                "check_same_thread": False,
                "timeout": busy_timeout_s,
                "cached_statements": 256,
            },
            paramstyle="named",
            **({"poolclass": sa.NullPool} if readable else {"max_overflow": -1}),
        )
        # No listener may refer to this object: SQLAlchemy keeps everything in use forever, listeners included.
        if readable:
            sa.event.listen(engine, "do_connect", partial(_to_read, self._path))
        else:
            sa.event.listen(engine, "connect", partial(_on_connect, self._path))
        sa.event.listen(engine, "close", _on_close)
        super().__init__(engine, clock)
        self.url, self.label = sqlite_url(self._path), str(self._path)
        self._at_end()

    def _inode(self) -> int | None:
        try:
            return self._path.stat().st_ino
        except FileNotFoundError:
            return None

    def _no_room(self) -> bool:
        """Return whether the disk is too full to open the file for writing; it can still be looked at."""
        used = self._path.stat().st_size > 0 and not Path(f"{self._path}-wal").exists()
        return used and os.statvfs(self._path).f_bavail == 0

    def _at_end(self) -> None:
        """Have the connections closed when nothing refers to this object any more."""
        self._closing = weakref.finalize(self, _close_own, os.getpid(), self._idle, self.engine)
        self._closing.atexit = False

    def begin(self, *, write: bool) -> SqliteSession:
        if self._inode() != self._file:
            raise StoreError(
                f"{self._path} was moved, deleted or replaced while this process had it open, so nothing that it "
                "would write there would be found again. End whatever works on this database, and start it again"
            )
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self.engine.raw_connection()
        turn: _Turn | None = connection.info.get("turn") if write else None
        try:
            if turn is not None:
                turn.wait()
            session = SqliteSession(self, connection, turn, self._idle, write=write)
            session.cursor.execute("BEGIN IMMEDIATE" if write else "BEGIN")
        except BaseException:
            if turn is not None:
                turn.end()
            connection.close()
            raise
        return session

    def forget_connections(self) -> None:
        self._closing.detach()
        _OF_PARENTS.append((self._idle, self.engine))
        self._idle = deque(maxlen=self._idle.maxlen)
        self.engine.dispose(close=False)
        self._at_end()

    def watch(self) -> "SqliteWatch":
        return SqliteWatch(self.engine.raw_connection())

    def place(self, session: SqlSession) -> str:
        return f"inode {self._path.stat().st_ino}"

    def close(self) -> None:
        _close(self._idle, self.engine)

    def translate_error(self, error: Exception) -> StoreError:
        if isinstance(error, OSError):
            return StoreUnavailable(f"{error.filename or self._path}: {error.strerror}; {advice_on(error)}")
        # An extended result code carries the primary one in its low byte.
        code = (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return StoreBusy(
                f"{self._path} was held by another program for {self._busy_timeout_s:g} s; close whatever else "
                "has it open with an unfinished transaction (a sqlite3 shell, a database browser, a backup)"
            )
        return super().translate_error(error)


_ADVICE: Mapping[int, str] = {
    sqlite3.SQLITE_FULL: "the disk is full: free some space and go on, nothing that was confirmed is lost",
    sqlite3.SQLITE_READONLY: "the file, or its folder, is read-only, or the disk is full, so it can only be "
    "looked at: make both writable, and free some space",
    sqlite3.SQLITE_PERM: "permission is missing: make the file and its folder writable",
    sqlite3.SQLITE_CANTOPEN: "check that the path is right and that the folder is writable",
    sqlite3.SQLITE_IOERR: "the disk failed, is full or was made read-only: check it before going on",
    # SQLite also reports this for an intact file if the disk failed while it was read.
    sqlite3.SQLITE_CORRUPT: "the disk failed, or the file is damaged: check the disk and run this again; if that "
    "does not help, copy the file away, then restore a backup or try sqlite3's .recover",
    sqlite3.SQLITE_NOTADB: "the file is not a SQLite database: name another one",
}


def _make_folder(path: Path) -> None:
    # SQLite flushes the folder that holds the file, and nothing above: a folder that is new would be lost in
    # a power cut, and every commit with it.
    if path.is_dir():
        return
    _make_folder(path.parent)
    path.mkdir(exist_ok=True)
    try:
        parent = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(parent)
        finally:
            os.close(parent)
    except OSError as error:
        # Some systems cannot flush a folder, or only a readable one, and raise.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EACCES):
            raise


def _to_read(path: Path, _dialect: Any, _record: Any, arguments: list[Any], _options: Any) -> None:
    # Without a log, no process has the file open, and SQLite would want to make one. Such a connection sees no
    # later commit, so each transaction has its own.
    mode = "ro" if Path(f"{path}-wal").exists() else "ro&immutable=1"
    arguments[0] = f"{path.as_uri()}?mode={mode}"


def _on_connect(path: Path, connection: Any, record: Any) -> None:
    record.info["turn"] = turn = _Turn(path)
    if connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
        # SQLite does not wait here: of two processes that open a new file at once, one would fail.
        turn.wait()
        try:
            connection.execute("PRAGMA journal_mode=WAL")
        finally:
            turn.end()
    for pragma in (
        f"synchronous={SYNCHRONOUS}",
        "foreign_keys=ON",
        f"cache_size=-{CACHE_KIB}",
        f"wal_autocheckpoint={PAGES_BETWEEN_CHECKPOINTS}",
        "journal_size_limit=67108864",
    ):
        connection.execute(f"PRAGMA {pragma}")


def _close_own(process: int, idle: deque[Any], engine: sa.Engine) -> None:
    if os.getpid() == process:
        _close(idle, engine)
    else:
        _OF_PARENTS.append((idle, engine))


def _close(idle: deque[Any], engine: sa.Engine) -> None:
    while idle:
        idle.pop().close()
    engine.dispose()


def _on_close(connection: Any, record: Any) -> None:
    turn = record.info.pop("turn", None)
    if turn is not None:
        turn.close()
