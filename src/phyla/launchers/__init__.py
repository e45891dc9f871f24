"""What places worker processes: each launcher is an entry point in the group `phyla.launchers`."""

from phyla.launchers.gpus import gpu_environments, visible_gpus
from phyla.launchers.launcher import Launcher, get_launcher
from phyla.launchers.spec import WorkerSpec

__all__ = ["Launcher", "WorkerSpec", "get_launcher", "gpu_environments", "visible_gpus"]
