"""Workers: claim a trial, call the training function, commit what it left, again."""

from phyla.worker.identity import is_alive_here, worker_name
from phyla.worker.loop import Worker, WorkerContext
from phyla.worker.trial import Parent, Trial

__all__ = ["Parent", "Trial", "Worker", "WorkerContext", "is_alive_here", "worker_name"]
