"""What a Python user holds: a study to run, and the results of one."""

from phyla.study.check import Checked, check
from phyla.study.checked import Retention, Retries
from phyla.study.evaluations import BestEvaluation, Evaluations
from phyla.study.files import load_schedule, load_studies, load_suites
from phyla.study.loading import compare, load_evaluations, load_study
from phyla.study.places import Places
from phyla.study.progress import Progress
from phyla.study.repeating import continue_training, replay, replicate_seed, run_replicates
from phyla.study.results import Best, BestCheckpoint, ConfigChange, Replicate, Results
from phyla.study.simulating import Simulated, simulate
from phyla.study.standing import Change, Missing, Standing, Watched
from phyla.study.study import Study
from phyla.study.watching import evaluate, watch

__all__ = [
    "Best",
    "BestCheckpoint",
    "BestEvaluation",
    "Change",
    "Checked",
    "ConfigChange",
    "Evaluations",
    "Missing",
    "Places",
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
    "simulate",
    "watch",
]
