"""Workers: claim a trial or an eval task, call the user's function, commit what it left, again."""

from phyla.worker.aggregation import task_results
from phyla.worker.bindings import Bindings
from phyla.worker.evaluated_run import EvaluatedRun
from phyla.worker.evaluation import Evaluation, EvaluationCheckpoint, Shard
from phyla.worker.evaluator import Evaluator
from phyla.worker.identity import is_alive_here, worker_name
from phyla.worker.loop import Worker, WorkerContext
from phyla.worker.sources import Sources, StudySources
from phyla.worker.trainer import Trainer
from phyla.worker.trial import Parent, Trial, unusable_start

__all__ = [
    "Bindings",
    "EvaluatedRun",
    "Evaluation",
    "EvaluationCheckpoint",
    "Evaluator",
    "Parent",
    "Shard",
    "Sources",
    "StudySources",
    "Trainer",
    "Trial",
    "Worker",
    "WorkerContext",
    "is_alive_here",
    "task_results",
    "unusable_start",
    "worker_name",
]
