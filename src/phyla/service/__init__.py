"""The service: studies over HTTP, for workers and tools without access to the database. Needs `phyla[server]`."""

from phyla.service.app import make_app

__all__ = ["make_app"]
