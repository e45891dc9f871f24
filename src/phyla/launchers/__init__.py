"""What places worker processes."""

from phyla.launchers.gpus import gpu_environments, visible_gpus
from phyla.launchers.local import LocalLauncher
from phyla.launchers.spec import WorkerSpec

__all__ = ["LocalLauncher", "WorkerSpec", "gpu_environments", "visible_gpus"]
