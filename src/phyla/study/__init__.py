"""The Python interface: a study to run, and its results."""

from typing import TYPE_CHECKING

from phyla.system.deferred import deferred

if TYPE_CHECKING:
    from phyla.study.checking.check import check
    from phyla.study.checking.checked import Checked
    from phyla.study.declaration import Replicate, Retention, Retries, replicate_seed
    from phyla.study.files.load import load_schedule, load_studies, load_suites
    from phyla.study.places import Places
    from phyla.study.repeating.replay import continue_training, replay
    from phyla.study.repeating.replicates import run_replicates
    from phyla.study.results.best import Best, BestCheckpoint
    from phyla.study.results.compare import compare
    from phyla.study.results.evaluations import BestEvaluation, Evaluations
    from phyla.study.results.load import load_evaluations, load_study
    from phyla.study.results.progress import Progress
    from phyla.study.results.results import ConfigChange, Results
    from phyla.study.results.story import Event
    from phyla.study.results.watched_runs import Change, Missing, Watched, WatchedRunStatus
    from phyla.study.study import Study
    from phyla.study.watching.watch import evaluate, watch

__all__ = [
    "Best",
    "BestCheckpoint",
    "BestEvaluation",
    "Change",
    "Checked",
    "ConfigChange",
    "Evaluations",
    "Event",
    "Missing",
    "Places",
    "Progress",
    "Replicate",
    "Results",
    "Retention",
    "Retries",
    "Study",
    "Watched",
    "WatchedRunStatus",
    "check",
    "compare",
    "continue_training",
    "evaluate",
    "load_evaluations",
    "load_schedule",
    "load_studies",
    "load_study",
    "load_suites",
    "replay",
    "replicate_seed",
    "run_replicates",
    "watch",
]

__getattr__ = deferred(
    __name__,
    {
        "phyla.study.checking.check": "check",
        "phyla.study.checking.checked": "Checked",
        "phyla.study.declaration": "Replicate Retention Retries replicate_seed",
        "phyla.study.files.load": "load_schedule load_studies load_suites",
        "phyla.study.places": "Places",
        "phyla.study.repeating.replay": "continue_training replay",
        "phyla.study.repeating.replicates": "run_replicates",
        "phyla.study.results.best": "Best BestCheckpoint",
        "phyla.study.results.compare": "compare",
        "phyla.study.results.evaluations": "BestEvaluation Evaluations",
        "phyla.study.results.load": "load_evaluations load_study",
        "phyla.study.results.progress": "Progress",
        "phyla.study.results.results": "ConfigChange Results",
        "phyla.study.results.story": "Event",
        "phyla.study.results.watched_runs": "Change Missing Watched WatchedRunStatus",
        "phyla.study.study": "Study",
        "phyla.study.watching.watch": "evaluate watch",
    },
)


def __dir__() -> list[str]:
    return __all__
