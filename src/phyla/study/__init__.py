"""What a Python user holds: a study to run, and the results of one."""

from phyla.study.check import Checked, check, checks
from phyla.study.checked import Retention, Retries
from phyla.study.evaluations import BestEvaluation, Evaluations
from phyla.study.files import load_schedule, load_studies, load_suites
from phyla.study.loading import compare, list_all, list_studies, load_evaluations, load_study, open_any
from phyla.study.maintenance import Maintenance, maintain
from phyla.study.places import Places
from phyla.study.progress import Progress
from phyla.study.repeating import (
    Prepared,
    continue_training,
    prepare,
    replay,
    replicate_seed,
    replicates,
    run_replicates,
)
from phyla.study.results import Best, BestCheckpoint, ConfigChange, Replicate, Results
from phyla.study.simulating import Simulated, simulate
from phyla.study.standing import Change, Missing, Standing, Watched, standing
from phyla.study.study import Study
from phyla.study.targets import Planned, plan
from phyla.study.watching import evaluate, watch

__all__ = [
    "Best",
    "BestCheckpoint",
    "BestEvaluation",
    "Change",
    "Checked",
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
    "Watched",
    "check",
    "checks",
    "compare",
    "continue_training",
    "evaluate",
    "list_all",
    "list_studies",
    "load_evaluations",
    "load_schedule",
    "load_studies",
    "load_study",
    "load_suites",
    "maintain",
    "open_any",
    "plan",
    "prepare",
    "replay",
    "replicate_seed",
    "replicates",
    "run_replicates",
    "simulate",
    "standing",
    "watch",
]
