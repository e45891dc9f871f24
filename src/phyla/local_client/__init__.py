"""Clients that work in process: a controller on a store."""

from phyla.local_client.client import LocalClient, collect
from phyla.local_client.sorting import claim_checkpoints, known_checkpoints, open_checkpoints, sort_out
from phyla.local_client.turns import TakingTurns

__all__ = [
    "LocalClient",
    "TakingTurns",
    "claim_checkpoints",
    "collect",
    "known_checkpoints",
    "open_checkpoints",
    "sort_out",
]
