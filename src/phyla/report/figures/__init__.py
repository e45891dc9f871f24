"""One file per figure, each with one public function that makes a Plotly figure from plain data.

A report, a notebook and a dashboard use the same functions. To add a figure to the report of a study, write its
file and add its function to `STUDY_FIGURES`.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from phyla.report.data import StudyData
from phyla.report.figures.aggregates import aggregates_figure
from phyla.report.figures.curves import curves_figure
from phyla.report.figures.finals import finals_figure
from phyla.report.figures.fitness import fitness_figure
from phyla.report.figures.front import front_figure
from phyla.report.figures.lag import lag_figure
from phyla.report.figures.lineage import lineage_figure
from phyla.report.figures.matrix import matrix_figure
from phyla.report.figures.schedules import schedules_figure
from phyla.report.figures.sensitivity import sensitivity_figure
from phyla.report.figures.timeline import timeline_figure
from phyla.report.figures.times import time_figure

if TYPE_CHECKING:
    import plotly.graph_objects as go

STUDY_FIGURES: tuple[Callable[[StudyData], "go.Figure"], ...] = (
    fitness_figure,
    schedules_figure,
    lineage_figure,
    timeline_figure,
)
"""What the report of a study shows, the first one above its tables."""

__all__ = [
    "STUDY_FIGURES",
    "aggregates_figure",
    "curves_figure",
    "finals_figure",
    "fitness_figure",
    "front_figure",
    "lag_figure",
    "lineage_figure",
    "matrix_figure",
    "schedules_figure",
    "sensitivity_figure",
    "time_figure",
    "timeline_figure",
]
