"""SQLite on one connection that threads share: in memory, or a file that no other process may open."""

import sqlite3
import threading
from pathlib import Path
from typing import Any, final

import sqlalchemy as sa

from phyla.errors import StoreUnavailable
from phyla.settings import Clock
from phyla.store.sql.backend import SqlSession
from phyla.store.sql.sqlite import AnySqlite
from phyla.store.sqlite_url import MEMORY, sqlite_url

PRAGMAS = ("foreign_keys=ON",)
LOCKED = ("locking_mode=EXCLUSIVE", "journal_mode=WAL", "synchronous=FULL")


@final
class MemorySession(SqlSession):
    """A transaction on a database, or a part of the one that the same thread has open already.

    Rolling back a part undoes nothing else; a committed part is lost if the outer transaction rolls back.
    """

    def __init__(self, backend: "MemoryBackend", cursor: Any, part: str | None, *, write: bool) -> None:
        super().__init__(backend, cursor, write=write)
        self._backend = backend
        self._part = part

    def commit(self) -> None:
        self.cursor.execute("COMMIT" if self._part is None else f"RELEASE {self._part}")
        self._backend.release(committed=self.write)

    def rollback(self) -> None:
        try:
            if self._part is not None:
                self.cursor.execute(f"ROLLBACK TO {self._part}")
                self.cursor.execute(f"RELEASE {self._part}")
            elif self.cursor.connection.in_transaction:
                # A reader wrote nothing itself: whatever there is, a part of it committed.
                self.cursor.execute("ROLLBACK" if self.write else "COMMIT")
        finally:
            self._backend.release(committed=False)


@final
class MemoryWatch:
    """Waits for commits of other threads."""

    def __init__(self, backend: "MemoryBackend") -> None:
        self._backend = backend
        self._seen: int | None = None

    def wait(self, seconds: float) -> bool:
        before, self._seen = self._seen, self._backend.wait(self._seen, seconds)
        return self._seen != before

    def close(self) -> None:
        """Nothing is open."""


@final
class MemoryBackend(AnySqlite):
    """Makes a database in memory. Threads use its one connection in turn; a thread may open blocks inside others.

    Args:
        clock: tells the time.
        file: keeps the database in this file instead, locked for as long as it is open. That needs no memory
            that processes share, so the file may be on a network file system.
    """

    def __init__(self, clock: Clock, file: Path | None = None) -> None:
        self._file = file
        self.lasting = file is not None
        self.url = MEMORY if file is None else sqlite_url(file)
        self.label = MEMORY if file is None else str(file)
        engine = sa.create_engine(
            "sqlite://" if file is None else sa.URL.create("sqlite", database=str(file)),
            connect_args={"isolation_level": None, "check_same_thread": False, "cached_statements": 256},
            paramstyle="named",
            # Every other connection would have a database of its own.
            poolclass=sa.StaticPool,
        )
        super().__init__(engine, clock)
        self._turn = threading.RLock()
        self._depth = 0
        self._changed = threading.Condition()
        self._commits = 0
        try:
            if file is not None:
                file.parent.mkdir(parents=True, exist_ok=True)
            self._connection = engine.raw_connection()
            for pragma in PRAGMAS if file is None else (*LOCKED, *PRAGMAS):
                self._connection.execute(f"PRAGMA {pragma}")
            if file is not None:
                # The lock is taken by the first write.
                self._connection.execute("BEGIN IMMEDIATE")
                self._connection.execute("COMMIT")
        except (OSError, sqlite3.Error, sa.exc.OperationalError) as error:
            engine.dispose()
            raise StoreUnavailable(
                f"{self.label} cannot be opened for this process alone ({error}): does another service have it?"
            ) from error

    def begin(self, *, write: bool) -> MemorySession:
        self._turn.acquire()
        try:
            cursor = self._connection.cursor()
            part = f"part_{self._depth}" if self._depth else None
            cursor.execute("BEGIN" if part is None else f"SAVEPOINT {part}")
        except BaseException:
            self._turn.release()
            raise
        self._depth += 1
        return MemorySession(self, cursor, part, write=write)

    def release(self, *, committed: bool) -> None:
        """Let the next thread continue, and notify threads that wait for commits."""
        self._depth -= 1
        self._turn.release()
        if committed:
            with self._changed:
                self._commits += 1
                self._changed.notify_all()

    def wait(self, seen: int | None, seconds: float) -> int:
        with self._changed:
            self._changed.wait_for(lambda: self._commits != seen, seconds)
            return self._commits

    def watch(self) -> MemoryWatch:
        return MemoryWatch(self)

    def place(self, session: SqlSession) -> str:
        return MEMORY if self._file is None else f"inode {self._file.stat().st_ino}"

    def forget_connections(self) -> None:
        self._turn, self._changed = threading.RLock(), threading.Condition()
        if self._depth:
            self._depth = 0
            self._connection.rollback()

    def close(self) -> None:
        self._connection.close()
        self.engine.dispose()
