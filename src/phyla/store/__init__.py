"""Where studies are remembered: one contract, on SQLite (in a file or in memory) and on PostgreSQL."""

from phyla.store.contract import Changes, Reader, Store, StoreIdentity, Transaction, pages, pages_of_attempts
from phyla.store.opening import SERVICES, open_store, schema_revisions
from phyla.store.remote import RemoteStore, hold_on

__all__ = [
    "SERVICES",
    "Changes",
    "Reader",
    "RemoteStore",
    "Store",
    "StoreIdentity",
    "Transaction",
    "hold_on",
    "open_store",
    "pages",
    "pages_of_attempts",
    "schema_revisions",
]
