"""The store of studies: one contract, on SQLite (in a file or in memory) and on PostgreSQL."""

from phyla.machine import Reader
from phyla.store.contract import (
    Changes,
    Query,
    Store,
    StoreIdentity,
    Transaction,
    reports_that_count,
)
from phyla.store.opening import SERVICES, open_store, schema_revision
from phyla.store.remote import STORE, Part, RemoteStore, hold_on
