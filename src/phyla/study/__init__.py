"""What a Python user holds: a study to run, and the results of one."""

from phyla.study.comparing import compare
from phyla.study.evaluations import BestEvaluation, Evaluations, load_evaluations
from phyla.study.feed import Change, Missing, Watched
from phyla.study.files import load_schedule
from phyla.study.limits import Retention, Retries
from phyla.study.maintenance import Maintenance, maintain
from phyla.study.places import Places
from phyla.study.planning import Planned, plan
from phyla.study.progress import Progress
from phyla.study.replaying import (
    Prepared,
    continue_training,
    prepare_continuation,
    prepare_replay,
    replay,
)
from phyla.study.replicates import Replicate, replicate_seed, replicates, run_replicates
from phyla.study.results import (
    Best,
    BestCheckpoint,
    ConfigChange,
    Results,
    list_studies,
    load_study,
)
from phyla.study.simulating import Simulated, simulate
from phyla.study.study import Study
from phyla.study.suites import load_suites
from phyla.study.watch_status import Standing, SuiteStanding, list_all, open_any, standing
from phyla.study.watching import evaluate, watch

__all__ = [
    "Best",
    "BestCheckpoint",
    "BestEvaluation",
    "Change",
    "ConfigChange",
    "Evaluations",
    "Maintenance",
    "Missing",
    "Places",
    "Planned",
    "Prepared",
    "Progress",
    "Replicate",
    "Results",
    "Retention",
    "Retries",
    "Simulated",
    "Standing",
    "Study",
    "SuiteStanding",
    "Watched",
    "compare",
    "continue_training",
    "evaluate",
    "list_all",
    "list_studies",
    "load_evaluations",
    "load_schedule",
    "load_study",
    "load_suites",
    "maintain",
    "open_any",
    "plan",
    "prepare_continuation",
    "prepare_replay",
    "replay",
    "replicate_seed",
    "replicates",
    "run_replicates",
    "simulate",
    "standing",
    "watch",
]
