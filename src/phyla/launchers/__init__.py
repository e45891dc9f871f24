"""What places worker processes: each launcher is an entry point in the group `phyla.launchers`."""

from phyla.launchers.contract import Launcher, Pool, launcher_named
from phyla.launchers.spec import Gpus, Term, WorkerSpec, gpu_environments, visible_gpus

__all__ = ["Gpus", "Launcher", "Pool", "Term", "WorkerSpec", "gpu_environments", "launcher_named", "visible_gpus"]
