"""Open a store by its URL."""

from phyla.errors import ConfigurationError
from phyla.settings import Clock, system_clock
from phyla.store.contract import Store
from phyla.store.memory import MemoryStore


def open_store(url: str, *, clock: Clock = system_clock) -> Store:
    """Open a store, creating or migrating its schema as needed.

    Args:
        url: `memory://`, `sqlite:///path/to/file.db`, or `postgresql://user@host/database`.
        clock: tells the time, except on PostgreSQL, whose own clock counts.

    Raises:
        ConfigurationError: the URL is not understood.
        StoreUnavailable: it cannot be opened or reached.
        SchemaMismatch: it was made by a newer version of phyla.
    """
    if url == "memory://":
        return MemoryStore(clock)
    raise ConfigurationError(
        f"storage {url!r}: use sqlite:///file.db, postgresql://user@host/database or memory://"
    )
