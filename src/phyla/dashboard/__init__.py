"""The dashboard: live pages of studies in a browser. Needs `phyla[server]`."""

from phyla.dashboard.routes import dashboard_of

__all__ = ["dashboard_of"]
