"""How workers and tools speak with studies: a Protocol, and what implements it in this process."""

from phyla.client.directories import (
    claim_checkpoints,
    collect,
    known_checkpoints,
    open_checkpoints,
    placed,
    sort_out,
)
from phyla.client.local import LocalClient
from phyla.client.protocol import Client, CollectResult, GroupResults

__all__ = [
    "Client",
    "CollectResult",
    "GroupResults",
    "LocalClient",
    "claim_checkpoints",
    "collect",
    "known_checkpoints",
    "open_checkpoints",
    "placed",
    "sort_out",
]
