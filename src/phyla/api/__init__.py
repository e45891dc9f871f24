"""How workers and tools speak with a study: one Protocol, in process or over a wire."""

from phyla.api.client import Client, CollectResult

__all__ = ["Client", "CollectResult"]
