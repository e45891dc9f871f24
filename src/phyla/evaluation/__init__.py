"""Evaluation of checkpoints: suites and their policies, metrics that merge, aggregates, regressions. Pure."""

from phyla.evaluation.aggregates import (
    Aggregator,
    Estimate,
    Mean,
    TaskResult,
    WeightedMean,
    Worst,
)
from phyla.evaluation.matrix import Cell, CellStatus, GroupValues, Lag
from phyla.evaluation.metric import Metric
from phyla.evaluation.points import Point
from phyla.evaluation.policy import Policy
from phyla.evaluation.preparation import Preparation
from phyla.evaluation.statistics import Maximum, Minimum, Moments, Perplexity, PerSeed, Sum
from phyla.evaluation.suite import EvalTask, Suite, SuiteOutline, eval_task
from phyla.validation import suggest_arguments

__all__ = [
    "Aggregator",
    "Cell",
    "CellStatus",
    "Estimate",
    "EvalTask",
    "GroupValues",
    "Lag",
    "Maximum",
    "Mean",
    "Metric",
    "Minimum",
    "Moments",
    "PerSeed",
    "Perplexity",
    "Point",
    "Policy",
    "Preparation",
    "Suite",
    "SuiteOutline",
    "Sum",
    "TaskResult",
    "WeightedMean",
    "Worst",
    "eval_task",
]

suggest_arguments(EvalTask, Mean, PerSeed, Policy, Preparation, Suite, TaskResult, WeightedMean, Worst)
