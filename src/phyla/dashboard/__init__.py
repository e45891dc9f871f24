"""The dashboard: pages that show studies while they run. Needs `phyla[server]`."""

from phyla.dashboard.routes import dashboard_of

__all__ = ["dashboard_of"]
