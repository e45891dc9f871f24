"""phyla: population based training, and continuous evaluation of checkpoints.

Everything public is here: `phyla.Study`, `phyla.Space`, `phyla.PBT` and the rest of `__all__`.
"""

from typing import TYPE_CHECKING, Any

from phyla.errors import PhylaError
from phyla.records import Constrained, Maximize, Minimize, Pareto, StartFrom, WeightedSum
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
    from phyla.lineage import Schedule
    from phyla.report import StudyComparison
    from phyla.strategies import (
        ASHA,
        PB2,
        PBT,
        Backtrack,
        BestOfLast,
        BinaryTournament,
        Crossover,
        Divergence,
        ExploitPipeline,
        ExplorePipeline,
        ExploreWith,
        FixedSchedule,
        FromSuite,
        GridSearch,
        InitiatorPBT,
        Last,
        MeanOfLast,
        MedianStopping,
        ParetoTournament,
        ParetoTruncation,
        Perturb,
        RandomSearch,
        Replay,
        Resample,
        SingleWorkerExplore,
        StopWith,
        Truncation,
        TTest,
        WinnerTakesAll,
    )
    from phyla.study import (
        Evaluations,
        Results,
        Simulated,
        Study,
        Watched,
        compare,
        continue_training,
        evaluate,
        load_evaluations,
        load_schedule,
        load_study,
        load_suites,
        replay,
        run_replicates,
        simulate,
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
    "Constrained",
    "Crossover",
    "Divergence",
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
    "MedianStopping",
    "Minimize",
    "Minimum",
    "Moments",
    "Normalised",
    "Optuna",
    "Ordinal",
    "Params",
    "Pareto",
    "ParetoTournament",
    "ParetoTruncation",
    "Percentiles",
    "Perplexity",
    "Perturb",
    "PhylaError",
    "Policy",
    "RandomSearch",
    "Replay",
    "Resample",
    "Results",
    "Schedule",
    "Simulated",
    "SingleWorkerExplore",
    "Space",
    "StartFrom",
    "StopWith",
    "Study",
    "StudyComparison",
    "Suite",
    "Sum",
    "TTest",
    "Trial",
    "Truncation",
    "Watched",
    "WeightedMean",
    "WeightedSum",
    "WinnerTakesAll",
    "WorkerContext",
    "Worst",
    "compare",
    "continue_training",
    "eval_task",
    "evaluate",
    "load_evaluations",
    "load_schedule",
    "load_study",
    "load_suites",
    "replay",
    "run_replicates",
    "simulate",
    "watch",
]

_LATER = {
    "Evaluation": "phyla.worker",
    "EvaluationCheckpoint": "phyla.worker",
    "Evaluations": "phyla.study",
    "Optuna": "phyla.integrations.optuna_search",
    "Results": "phyla.study",
    "Simulated": "phyla.study",
    "Study": "phyla.study",
    "StudyComparison": "phyla.report",
    "Trial": "phyla.worker",
    "WorkerContext": "phyla.worker",
    "Following": "phyla.watcher",
    "Watched": "phyla.study",
    "compare": "phyla.study",
    "Schedule": "phyla.lineage",
    "continue_training": "phyla.study",
    "evaluate": "phyla.study",
    "load_evaluations": "phyla.study",
    "load_schedule": "phyla.study",
    "load_study": "phyla.study",
    "load_suites": "phyla.study",
    "run_replicates": "phyla.study",
    "simulate": "phyla.study",
    "replay": "phyla.study",
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

    return getattr(importlib.import_module(_LATER.get(name, "phyla.strategies")), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
