"""What places worker processes: each launcher is an entry point in the group `phyla.launchers`."""

from phyla.launchers.launcher import Gpus, Launcher, Term, WorkerSpec, get_launcher, gpu_environments, visible_gpus

__all__ = ["Gpus", "Launcher", "Term", "WorkerSpec", "get_launcher", "gpu_environments", "visible_gpus"]
