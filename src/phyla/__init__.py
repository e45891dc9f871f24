"""phyla: population based training, and continuous evaluation of checkpoints.

Everything public is here: `phyla.Study`, `phyla.Space`, `phyla.PBT` and the rest of `__all__`.
"""

from typing import TYPE_CHECKING, Any

from phyla.errors import PhylaError
from phyla.records import Maximize, Minimize
from phyla.space import Choice, Float, Int, Ordinal, Params, Space

if TYPE_CHECKING:
    from phyla.population import (
        PBT,
        BestOfLast,
        ExploitPipeline,
        ExplorePipeline,
        Last,
        MeanOfLast,
        Perturb,
        Resample,
        Truncation,
    )
    from phyla.study import Results, Study, load_study
    from phyla.worker import Trial, WorkerContext

__version__ = "0.1.0"

__all__ = [
    "PBT",
    "BestOfLast",
    "Choice",
    "ExploitPipeline",
    "ExplorePipeline",
    "Float",
    "Int",
    "Last",
    "Maximize",
    "MeanOfLast",
    "Minimize",
    "Ordinal",
    "Params",
    "Perturb",
    "PhylaError",
    "Resample",
    "Results",
    "Space",
    "Study",
    "Trial",
    "Truncation",
    "WorkerContext",
    "load_study",
]

_LATER = {
    "Results": "phyla.study",
    "Study": "phyla.study",
    "Trial": "phyla.worker",
    "WorkerContext": "phyla.worker",
    "load_study": "phyla.study",
}


def __getattr__(name: str) -> Any:
    """Import the heavier parts when they are first used."""
    if name not in __all__:
        raise AttributeError(f"module 'phyla' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_LATER.get(name, "phyla.population")), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
