"""The stateless decision maker: load, decide, commit, one transaction each."""

from phyla.controller.controller import Controller

__all__ = ["Controller"]
