"""The store on SQLite, in a file or in memory, and on PostgreSQL."""

from phyla.errors import ConfigurationError
from phyla.settings import Clock, system_clock
from phyla.store.sql.backend import Backend
from phyla.store.sql.memory import MemoryBackend
from phyla.store.sql.schema import HEAD
from phyla.store.sql.sqlite import SqliteBackend
from phyla.store.sql.store import SqlStore, found_revision
from phyla.store.sqlite_url import MEMORY

__all__ = ["SqlStore", "open_sql", "schema_revisions"]


def open_sql(url: str, clock: Clock) -> SqlStore:
    """Open a store on SQLite or PostgreSQL; see `phyla.store.open_store`."""
    return SqlStore(_backend(url, clock))


def schema_revisions(url: str) -> tuple[str | None, str]:
    """Return the schema's revision in a database and the one in use here; see `phyla.store.schema_revisions`."""
    return found_revision(_backend(url, system_clock)), HEAD


def _backend(url: str, clock: Clock) -> Backend:
    if url == MEMORY:
        return MemoryBackend(clock)
    if url.startswith("sqlite:"):
        return SqliteBackend(url, clock)
    if url.startswith(("postgresql:", "postgres:", "postgresql+psycopg:")):
        from phyla.store.sql.postgres import PostgresBackend

        return PostgresBackend(url)
    raise ConfigurationError(
        f"storage {url!r}: use sqlite:///file.db, postgresql://user@host/database or memory://"
    )
