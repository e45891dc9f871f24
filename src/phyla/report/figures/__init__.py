"""Functions that make a Plotly figure from records; the report, notebooks and the dashboard draw what is here.

The mappings are in the order in which figures are shown. A figure without traces has nothing to show yet; its
annotation says why.
"""

from collections.abc import Callable, Mapping
from typing import TypeVar

from phyla.errors import UsageError
from phyla.report import style
from phyla.report.comparison import StudyComparison
from phyla.report.data import EvaluationData, StudyData
from phyla.report.figures.comparison import curves_figure, finals_figure, spent_figure, time_figure
from phyla.report.figures.fitness import fitness_figure
from phyla.report.figures.front import front_figure
from phyla.report.figures.lineage import lineage_figure
from phyla.report.figures.schedules import schedules_figure
from phyla.report.figures.suites import aggregates_figure, matrix_figure

T = TypeVar("T")

STUDY_FIGURES: Mapping[str, Callable[[StudyData], style.Figure]] = {
    "progress": fitness_figure,
    "front": front_figure,
    "phylogeny": lineage_figure,
    "schedules": schedules_figure,
    "timeline": time_figure,
}
"""Figures of a study by name."""
EVALUATION_FIGURES: Mapping[str, Callable[[EvaluationData], style.Figure]] = {
    "aggregates": aggregates_figure,
    "matrix": matrix_figure,
}
"""Figures of the evaluation of checkpoints by name."""
COMPARISON_FIGURES: Mapping[str, Callable[[StudyComparison], style.Figure]] = {
    "curves": curves_figure,
    "finals": finals_figure,
    "time": spent_figure,
}
"""Figures of compared studies by name."""


def chosen(figures: Mapping[str, T], name: str) -> T:
    """Return a figure by name; UsageError lists the names there are."""
    if name not in figures:
        raise UsageError(f"there is no figure {name!r}; there are {', '.join(figures)}")
    return figures[name]
