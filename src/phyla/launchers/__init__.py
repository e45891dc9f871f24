"""Launchers start pools of workers; each is an entry point in the group `phyla.launchers`."""

from phyla.launchers.contract import Launcher, Pool, launcher_named

__all__ = ["Launcher", "Pool", "launcher_named"]
