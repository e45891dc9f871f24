"""Open a store by its URL; SQLAlchemy is imported lazily."""

from typing import TYPE_CHECKING, cast

from phyla.errors import ConfigurationError
from phyla.formatting import mask_password
from phyla.settings import Clock, storage_name, system_clock
from phyla.store.contract import Store
from phyla.store.remote import PUBLISHED, RemoteStore
from phyla.store.sqlite_url import MEMORY, PREFIX, read_sqlite_url

if TYPE_CHECKING:
    from phyla.store.sql.backend import Backend

SERVICES = ("http://", "https://", PUBLISHED)


def open_store(url: str, *, clock: Clock = system_clock, alone: bool = False) -> Store:
    """Open a store, creating its schema as needed.

    Args:
        url: `memory://`, `sqlite:///path/to/file.db`, `postgresql://user@host/database`, or `http://host:port`,
            the address of a service that has opened one of these. In the path of a SQLite file write `?` as
            `%3F` and `%` as `%25`.
        clock: the clock, except on PostgreSQL, which uses that of its server.
        alone: whether only this process uses the database. Then SQLite may be on a network file system.

    Raises:
        ConfigurationError: the URL is invalid, or names SQLite on a network file system.
        StoreUnavailable: it cannot be opened or reached.
        StoreBusy: another process holds it for too long.
        SchemaMismatch: it was made by a newer version of phyla.
    """
    if url.startswith(SERVICES):
        return cast("Store", RemoteStore(url))
    from phyla.store.sql.store import SqlStore

    if alone and url.startswith(PREFIX):
        from phyla.store.sql.memory import MemoryBackend
        from phyla.system.file_systems import network_file_system

        file = read_sqlite_url(url).absolute()
        if network_file_system(file) is not None:
            return SqlStore(MemoryBackend(clock, file))
    return SqlStore(_backend(url, clock))


def schema_revision(url: str) -> str | None:
    """Return the revision of a SQL database's schema; None for a new database.

    Read-only.

    Args:
        url: as for `open_store`; a SQLite file must exist.

    Raises:
        ConfigurationError: the URL is invalid, or names SQLite on a network file system.
        StoreUnavailable: it cannot be opened or reached.
    """
    from phyla.store.sql.schema import revision
    from phyla.store.sql.store import explain_error

    backend = _backend(url, system_clock)
    try:
        with backend.engine.connect() as connection:
            return revision(connection)
    except Exception as error:
        raise explain_error(backend, error) from error
    finally:
        backend.engine.dispose()


def _backend(url: str, clock: Clock) -> "Backend":
    if url == MEMORY:
        from phyla.store.sql.memory import MemoryBackend

        return MemoryBackend(clock)
    if url.startswith("sqlite:"):
        from phyla.store.sql.sqlite import SqliteBackend

        return SqliteBackend(url, clock)
    if url.startswith(("postgresql:", "postgres:", "postgresql+psycopg:")):
        from phyla.store.sql.postgres import PostgresBackend

        return PostgresBackend(url)
    raise ConfigurationError(
        f"{storage_name(url)}={mask_password(url)!r}: use sqlite:///file.db, postgresql://user@host/database, "
        "http://host:port or memory://"
    )
