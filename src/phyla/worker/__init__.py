"""Workers: claim a trial or an eval task, call the user's function, commit its result, repeat."""

from phyla.worker.commands.command import Command
from phyla.worker.evaluating.evaluated_study import EvaluatedStudy, Sources, StudySources
from phyla.worker.evaluating.evaluation import Evaluation, EvaluationCheckpoint, Shard
from phyla.worker.evaluating.evaluator import Evaluator
from phyla.worker.launch import Launch, dead_launches, launch_of
from phyla.worker.loop import Beat, Closing, Worker, WorkerContext
from phyla.worker.training.session import TrialSession, unusable_start
from phyla.worker.training.stopwatch import Stopwatch
from phyla.worker.training.trainer import Trainer
from phyla.worker.training.trial import Parent, Trial, session_of

__all__ = [
    "Beat",
    "Closing",
    "Command",
    "EvaluatedStudy",
    "Evaluation",
    "EvaluationCheckpoint",
    "Evaluator",
    "Launch",
    "Parent",
    "Shard",
    "Sources",
    "Stopwatch",
    "StudySources",
    "Trainer",
    "Trial",
    "TrialSession",
    "Worker",
    "WorkerContext",
    "dead_launches",
    "launch_of",
    "session_of",
    "unusable_start",
]
