"""Evaluation of checkpoints: suites and their policies, metrics that merge, aggregates, regressions. Pure."""

from phyla.arguments import suggest_arguments
from phyla.evaluation.aggregates import Aggregator, Mean, Normalised, Percentiles, WeightedMean, Worst, aggregate
from phyla.evaluation.cells import (
    Cause,
    Cell,
    CellStatus,
    GroupValues,
    Lag,
    causes,
    cell,
    current_tasks,
    group_values,
    lag,
)
from phyla.evaluation.confusion import Confusion
from phyla.evaluation.histogram import Histogram
from phyla.evaluation.metric import Metric, merged
from phyla.evaluation.moments import Moments, PerSeed
from phyla.evaluation.points import Point, PointKind, array_point, cell_points, group_points, point_row
from phyla.evaluation.policy import Policy, Queue, Skip, decide
from phyla.evaluation.recorder import Recorder
from phyla.evaluation.regression import Comparison, compare
from phyla.evaluation.result import Estimate, TaskResult
from phyla.evaluation.stored import decode, encode
from phyla.evaluation.suite import (
    EvalTask,
    Suite,
    SuiteOutline,
    TaskOutline,
    check_aggregate,
    eval_task,
    outlines,
    suite_named,
)
from phyla.evaluation.totals import Maximum, Minimum, Perplexity, Sum

__all__ = [
    "Aggregator",
    "Cause",
    "Cell",
    "CellStatus",
    "Comparison",
    "Confusion",
    "Estimate",
    "EvalTask",
    "GroupValues",
    "Histogram",
    "Lag",
    "Maximum",
    "Mean",
    "Metric",
    "Minimum",
    "Moments",
    "Normalised",
    "PerSeed",
    "Percentiles",
    "Perplexity",
    "Point",
    "PointKind",
    "Policy",
    "Queue",
    "Recorder",
    "Skip",
    "Suite",
    "SuiteOutline",
    "Sum",
    "TaskOutline",
    "TaskResult",
    "WeightedMean",
    "Worst",
    "aggregate",
    "array_point",
    "causes",
    "cell",
    "cell_points",
    "check_aggregate",
    "compare",
    "current_tasks",
    "decide",
    "decode",
    "encode",
    "eval_task",
    "group_points",
    "group_values",
    "lag",
    "merged",
    "outlines",
    "point_row",
    "suite_named",
]

suggest_arguments(
    EvalTask,
    Mean,
    Normalised,
    Percentiles,
    Policy,
    Suite,
    WeightedMean,
    Worst,
)
