"""Clients that work in process: a controller on a store."""

from phyla.local_client.run_client import RunClient
from phyla.local_client.sorting import claim_checkpoints, known_checkpoints, open_checkpoints, sort_out
from phyla.local_client.study_client import LocalClient, collect

__all__ = [
    "LocalClient",
    "RunClient",
    "claim_checkpoints",
    "collect",
    "known_checkpoints",
    "open_checkpoints",
    "sort_out",
]
