"""What a Python user holds: a study to run, and the results of one."""

from phyla.study.maintenance import Maintenance, maintain
from phyla.study.places import Places
from phyla.study.progress import Progress
from phyla.study.results import Best, BestCheckpoint, Results, list_studies, load_study
from phyla.study.study import Study

__all__ = [
    "Best",
    "BestCheckpoint",
    "Maintenance",
    "Places",
    "Progress",
    "Results",
    "Study",
    "list_studies",
    "load_study",
    "maintain",
]
