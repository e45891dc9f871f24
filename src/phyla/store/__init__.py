"""Where studies are remembered: one contract, in memory, on SQLite and on PostgreSQL."""

from phyla.store.contract import Changes, Reader, Store, StoreIdentity, Transaction, pages
from phyla.store.evaluation import EvalReader, EvalTransaction
from phyla.store.memory import MemoryStore
from phyla.store.opening import open_store, schema_revisions

__all__ = [
    "Changes",
    "EvalReader",
    "EvalTransaction",
    "MemoryStore",
    "Reader",
    "Store",
    "StoreIdentity",
    "Transaction",
    "open_store",
    "pages",
    "schema_revisions",
]
