"""phyla: population based training, and continuous evaluation of checkpoints.

What most studies need is here, in `__all__`. The other strategies and rules are in `phyla.strategies`, the other
aggregates in `phyla.evaluation`, the errors in `phyla.errors`.
"""

from typing import TYPE_CHECKING, Any

from phyla.system.deferred import deferred

if TYPE_CHECKING:
    from phyla.errors import PhylaError
    from phyla.evaluation import EvalTask, Policy, Suite, eval_task
    from phyla.integrations.optuna_search import Optuna
    from phyla.records import Constrained, Maximize, Minimize, Pareto, StartFrom, WeightedSum
    from phyla.space import Choice, Float, Int, Ordinal, Space
    from phyla.strategies import (
        ASHA,
        PBT,
        Final,
        FromSuite,
        GridSearch,
        InitiatorPBT,
        MedianStopping,
        Perturb,
        RandomSearch,
        Truncation,
    )
    from phyla.study import (
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
        watch,
    )
    from phyla.study.attached.attach import attach
    from phyla.watcher import Following
    from phyla.worker import Command, Evaluation, Trial, WorkerContext

__version__ = "0.1.0"

__all__ = [
    "ASHA",
    "PBT",
    "Choice",
    "Command",
    "Constrained",
    "EvalTask",
    "Evaluation",
    "Final",
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
    "attach",
    "compare",
    "continue_training",
    "eval_task",
    "load_evaluations",
    "load_schedule",
    "load_study",
    "replay",
    "run_replicates",
    "watch",
]

_load = deferred(
    __name__,
    {
        "phyla.errors": "PhylaError",
        "phyla.evaluation": "EvalTask Policy Suite eval_task",
        "phyla.integrations.optuna_search": "Optuna",
        "phyla.records": "Constrained Maximize Minimize Pareto StartFrom WeightedSum",
        "phyla.space": "Choice Float Int Ordinal Space",
        "phyla.strategies": "ASHA PBT Final FromSuite GridSearch InitiatorPBT MedianStopping Perturb RandomSearch "
        "Truncation",
        "phyla.study": "Results Retention Retries Study compare continue_training load_evaluations "
        "load_schedule load_study replay run_replicates watch",
        "phyla.study.attached.attach": "attach",
        "phyla.watcher": "Following",
        "phyla.worker": "Command Evaluation Trial WorkerContext",
    },
)

_PUBLIC = ("evaluation", "lineage", "report", "space", "strategies", "study", "testing", "watcher", "worker")
"""Modules that have further names for users."""


def __getattr__(name: str) -> Any:
    """Import modules when they are first used; say where further names are."""
    from importlib import import_module, util

    if name in __all__:
        return _load(name)
    if not name.startswith("_"):
        if util.find_spec(f"phyla.{name}") is not None:
            return import_module(f"phyla.{name}")
        moved = [module for module in _PUBLIC if name in import_module(f"phyla.{module}").__all__]
        where = "".join(f"; it is phyla.{module}.{name}" for module in moved)
        raise AttributeError(f"module 'phyla' has no attribute {name!r}{where}")
    raise AttributeError(f"module 'phyla' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
