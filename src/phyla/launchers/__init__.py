"""What places worker processes: each launcher is an entry point in the group `phyla.launchers`."""

from phyla.launchers.contract import Launcher, Pool, launcher_named

__all__ = ["Launcher", "Pool", "launcher_named"]
