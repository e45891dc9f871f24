"""Functions that make a Plotly figure from records, for the report, notebooks and the dashboard.

The mappings are in display order. A figure without traces has no data yet; its
annotation explains why.
"""

from collections.abc import Callable, Mapping

from phyla.report import style
from phyla.report.compared import ComparedGroups
from phyla.report.data import EvaluationData, StudyData
from phyla.report.figures.comparison import curves_figure, differences_figure
from phyla.report.figures.front import front_figure
from phyla.report.figures.gains import gains_figure
from phyla.report.figures.phylogeny import phylogeny_figure
from phyla.report.figures.progress import progress_figure
from phyla.report.figures.schedules import schedules_figure
from phyla.report.figures.selection import selection_figure
from phyla.report.figures.suites import aggregates_figure, lag_figure, matrix_figure
from phyla.report.figures.timeline import timeline_figure

STUDY_FIGURES: Mapping[str, Callable[[StudyData], style.Figure]] = {
    "progress": progress_figure,
    "phylogeny": phylogeny_figure,
    "front": front_figure,
    "schedules": schedules_figure,
    "gains": gains_figure,
    "selection": selection_figure,
    "timeline": timeline_figure,
}
"""Figures of a study by name."""
EVALUATION_FIGURES: Mapping[str, Callable[[EvaluationData], style.Figure]] = {
    "aggregates": aggregates_figure,
    "matrix": matrix_figure,
    "lag": lag_figure,
}
"""Figures of the evaluation of checkpoints by name."""
COMPARISON_FIGURES: Mapping[str, Callable[[ComparedGroups], style.Figure]] = {
    "curves": curves_figure,
    "differences": differences_figure,
}
"""Figures of compared studies by name."""
