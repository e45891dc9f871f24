"""phyla: population based training, and continuous evaluation of checkpoints.

Everything public is here: `phyla.Study`, `phyla.Space`, `phyla.PBT` and the rest of `__all__`.
"""

from typing import TYPE_CHECKING, Any

from phyla.errors import PhylaError
from phyla.records import Maximize, Minimize
from phyla.space import Choice, Float, Int, Ordinal, Params, Space

if TYPE_CHECKING:
    from phyla.evaluation import (
        Confusion,
        EvalTask,
        Histogram,
        Maximum,
        Mean,
        Minimum,
        Moments,
        Normalised,
        Percentiles,
        Perplexity,
        Policy,
        Suite,
        Sum,
        WeightedMean,
        Worst,
        eval_task,
    )
    from phyla.integrations.optuna_search import Optuna
    from phyla.population import (
        ASHA,
        PB2,
        PBT,
        Backtrack,
        BestOfLast,
        BinaryTournament,
        Crossover,
        ExploitPipeline,
        ExplorePipeline,
        ExploreWith,
        FixedSchedule,
        FromSuite,
        GridSearch,
        InitiatorPBT,
        Last,
        MeanOfLast,
        Perturb,
        RandomSearch,
        Resample,
        SingleWorkerExplore,
        Truncation,
        TTest,
        WinnerTakesAll,
    )
    from phyla.study import (
        Evaluations,
        Results,
        Study,
        Watched,
        evaluate,
        load_evaluations,
        load_study,
        load_suites,
        watch,
    )
    from phyla.watcher import Following
    from phyla.worker import Evaluation, EvaluationCheckpoint, Trial, WorkerContext

__version__ = "0.1.0"

__all__ = [
    "ASHA",
    "PB2",
    "PBT",
    "Backtrack",
    "BestOfLast",
    "BinaryTournament",
    "Choice",
    "Confusion",
    "Crossover",
    "EvalTask",
    "Evaluation",
    "EvaluationCheckpoint",
    "Evaluations",
    "ExploitPipeline",
    "ExplorePipeline",
    "ExploreWith",
    "FixedSchedule",
    "Float",
    "Following",
    "FromSuite",
    "GridSearch",
    "Histogram",
    "InitiatorPBT",
    "Int",
    "Last",
    "Maximize",
    "Maximum",
    "Mean",
    "MeanOfLast",
    "Minimize",
    "Minimum",
    "Moments",
    "Normalised",
    "Optuna",
    "Ordinal",
    "Params",
    "Percentiles",
    "Perplexity",
    "Perturb",
    "PhylaError",
    "Policy",
    "RandomSearch",
    "Resample",
    "Results",
    "SingleWorkerExplore",
    "Space",
    "Study",
    "Suite",
    "Sum",
    "TTest",
    "Trial",
    "Truncation",
    "Watched",
    "WeightedMean",
    "WinnerTakesAll",
    "WorkerContext",
    "Worst",
    "eval_task",
    "evaluate",
    "load_evaluations",
    "load_study",
    "load_suites",
    "watch",
]

_LATER = {
    "Evaluation": "phyla.worker",
    "EvaluationCheckpoint": "phyla.worker",
    "Evaluations": "phyla.study",
    "Optuna": "phyla.integrations.optuna_search",
    "Results": "phyla.study",
    "Study": "phyla.study",
    "Trial": "phyla.worker",
    "WorkerContext": "phyla.worker",
    "Following": "phyla.watcher",
    "Watched": "phyla.study",
    "evaluate": "phyla.study",
    "load_evaluations": "phyla.study",
    "load_study": "phyla.study",
    "load_suites": "phyla.study",
    "watch": "phyla.study",
    **dict.fromkeys(
        (
            "Confusion",
            "EvalTask",
            "Histogram",
            "Maximum",
            "Mean",
            "Minimum",
            "Moments",
            "Normalised",
            "Percentiles",
            "Perplexity",
            "Policy",
            "Suite",
            "Sum",
            "WeightedMean",
            "Worst",
            "eval_task",
        ),
        "phyla.evaluation",
    ),
}


def __getattr__(name: str) -> Any:
    """Import the heavier parts when they are first used."""
    if name not in __all__:
        raise AttributeError(f"module 'phyla' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_LATER.get(name, "phyla.population")), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
