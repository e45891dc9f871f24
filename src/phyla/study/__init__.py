"""What a Python user holds: a study to run, and the results of one."""

from phyla.study.places import Places
from phyla.study.results import Best, BestCheckpoint, Results, load_study
from phyla.study.study import Study

__all__ = ["Best", "BestCheckpoint", "Places", "Results", "Study", "load_study"]
