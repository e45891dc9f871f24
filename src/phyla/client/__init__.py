"""How workers and tools speak with studies: a Protocol, and what implements it in this process."""

from phyla.client.local import LocalClient, collect
from phyla.client.protocol import Client, CollectResult, GroupResults
from phyla.client.sorting import claim_checkpoints, known_checkpoints, open_checkpoints, sort_out

__all__ = [
    "Client",
    "CollectResult",
    "GroupResults",
    "LocalClient",
    "claim_checkpoints",
    "collect",
    "known_checkpoints",
    "open_checkpoints",
    "sort_out",
]
