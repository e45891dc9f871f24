"""The requests of workers, supervisors and tools to studies."""

from phyla.client.checkpoint_custody import (
    CollectResult,
    claim_checkpoints,
    collect,
    known_checkpoints,
    open_checkpoints,
    placed,
    sort_out,
)
from phyla.client.client import Client
