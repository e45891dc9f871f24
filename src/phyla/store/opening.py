"""Open a store by its URL."""

from phyla.settings import Clock, system_clock
from phyla.store.contract import Store


def open_store(url: str, *, clock: Clock = system_clock) -> Store:
    """Open a store, creating its schema as needed.

    Args:
        url: `memory://`, `sqlite:///path/to/file.db`, or `postgresql://user@host/database`. SQLite takes the
            option `?synchronous=normal`: faster, and a power cut may undo the last commits. In its path
            write `?` as `%3F` and `%` as `%25`.
        clock: tells the time, except on PostgreSQL, whose own clock counts.

    Raises:
        ConfigurationError: the URL is not understood, or SQLite is asked for on a network file system.
        StoreUnavailable: it cannot be opened or reached.
        StoreBusy: somebody else holds it for too long.
        SchemaMismatch: it was made by a newer version of phyla.
    """
    from phyla.store.sql import open_sql

    return open_sql(url, clock)


def schema_revisions(url: str) -> tuple[str | None, str]:
    """Return the schema's revision in a SQL database, None before the first one, and the one phyla uses.

    Changes nothing.

    Args:
        url: as for `open_store`; a SQLite file must exist.

    Raises:
        ConfigurationError: the URL is not understood, or SQLite is asked for on a network file system.
        StoreUnavailable: it cannot be opened or reached.
    """
    from phyla.store.sql import schema_revisions

    return schema_revisions(url)
