"""How workers and tools speak with studies: a Protocol, in process or over a wire."""

from phyla.api.client import Client, CollectResult, GroupResults

__all__ = ["Client", "CollectResult", "GroupResults"]
