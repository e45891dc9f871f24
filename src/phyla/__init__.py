"""phyla: population based training, and continuous evaluation of checkpoints.

What most studies need is here, in `__all__`. The other strategies and rules are in `phyla.strategies`, the other
aggregates in `phyla.evaluation`, the errors in `phyla.errors`.
"""

from typing import TYPE_CHECKING, Any

from phyla.errors import PhylaError
from phyla.records import Constrained, Maximize, Minimize, Pareto, StartFrom, WeightedSum
from phyla.space import Choice, Float, Int, Ordinal, Params, Space

if TYPE_CHECKING:
    from phyla.evaluation import EvalTask, Policy, Suite, eval_task
    from phyla.integrations.optuna_search import Optuna
    from phyla.strategies import (
        ASHA,
        PBT,
        FromSuite,
        GridSearch,
        InitiatorPBT,
        MedianStopping,
        Perturb,
        RandomSearch,
        Truncation,
    )
    from phyla.study import (
        Evaluations,
        Results,
        Retention,
        Retries,
        Study,
        compare,
        continue_training,
        load_evaluations,
        load_schedule,
        load_study,
        replay,
        run_replicates,
        simulate,
        watch,
    )
    from phyla.watcher import Following
    from phyla.worker import Evaluation, Trial, WorkerContext

__version__ = "0.1.0"

__all__ = [
    "ASHA",
    "PBT",
    "Choice",
    "Constrained",
    "EvalTask",
    "Evaluation",
    "Evaluations",
    "Float",
    "Following",
    "FromSuite",
    "GridSearch",
    "InitiatorPBT",
    "Int",
    "Maximize",
    "MedianStopping",
    "Minimize",
    "Optuna",
    "Ordinal",
    "Params",
    "Pareto",
    "Perturb",
    "PhylaError",
    "Policy",
    "RandomSearch",
    "Results",
    "Retention",
    "Retries",
    "Space",
    "StartFrom",
    "Study",
    "Suite",
    "Trial",
    "Truncation",
    "WeightedSum",
    "WorkerContext",
    "compare",
    "continue_training",
    "eval_task",
    "load_evaluations",
    "load_schedule",
    "load_study",
    "replay",
    "run_replicates",
    "simulate",
    "watch",
]

_LATER = {
    "phyla.evaluation": "EvalTask Policy Suite eval_task",
    "phyla.integrations.optuna_search": "Optuna",
    "phyla.strategies": "ASHA PBT FromSuite GridSearch InitiatorPBT MedianStopping Perturb RandomSearch "
    "Truncation",
    "phyla.study": "Evaluations Results Retention Retries Study compare continue_training load_evaluations "
    "load_schedule load_study replay run_replicates simulate watch",
    "phyla.watcher": "Following",
    "phyla.worker": "Evaluation Trial WorkerContext",
}
"""Heavier modules, and the names of `__all__` that they have."""

_ELSEWHERE = {
    "phyla.evaluation": "Confusion Histogram Maximum Mean Minimum Moments Normalised Percentiles Perplexity Sum "
    "WeightedMean Worst",
    "phyla.lineage": "Schedule",
    "phyla.strategies": "PB2 Backtrack BestOfLast BinaryTournament Crossover Divergence ExploitPipeline "
    "ExplorePipeline ExploreWith FixedSchedule Last MeanOfLast ParetoTournament ParetoTruncation Replay Resample "
    "SingleWorkerExplore StopWith TTest WinnerTakesAll",
    "phyla.report": "StudyComparison",
    "phyla.study": "Simulated Watched evaluate load_suites",
    "phyla.worker": "EvaluationCheckpoint",
}
"""Further names that users need, and the modules that have them; these modules need no import of their own."""


def __getattr__(name: str) -> Any:
    """Import the heavier parts when they are first used."""
    import importlib

    if f"phyla.{name}" in _ELSEWHERE:
        return importlib.import_module(f"phyla.{name}")
    for module, names in _LATER.items():
        if name in names.split():
            return getattr(importlib.import_module(module), name)
    moved = [f"; it is {module}.{name}" for module, names in _ELSEWHERE.items() if name in names.split()]
    raise AttributeError(f"module 'phyla' has no attribute {name!r}{''.join(moved)}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
