"""The store on SQLite and PostgreSQL."""

from phyla.errors import ConfigurationError
from phyla.settings import Clock
from phyla.store.sql.sqlite import SqliteBackend
from phyla.store.sql.store import SqlStore

__all__ = ["SqlStore", "open_sql"]


def open_sql(url: str, clock: Clock) -> SqlStore:
    """Open a store on SQLite or PostgreSQL; see `phyla.store.open_store`."""
    if url.startswith("sqlite:"):
        return SqlStore(SqliteBackend(url, clock))
    if url.startswith(("postgresql:", "postgres:", "postgresql+psycopg:")):
        from phyla.store.sql.postgres import PostgresBackend

        return SqlStore(PostgresBackend(url))
    raise ConfigurationError(
        f"storage {url!r}: use sqlite:///file.db, postgresql://user@host/database or memory://"
    )
