"""How workers and tools speak with a study or a run: Protocols, in process or over a wire."""

from phyla.api.client import Answer, Client, CollectResult, Given, GroupResults, WorkClient

__all__ = ["Answer", "Client", "CollectResult", "Given", "GroupResults", "WorkClient"]
