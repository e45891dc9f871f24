"""Figures and reports of studies and evaluations, from records; Plotly is imported with the first figure."""

from phyla.report.comparison import ComparedStudy, StudyComparison, compare_studies
from phyla.report.data import CheckpointPaths, StudyData
from phyla.report.evaluation import EvaluationData
from phyla.report.figures import (
    aggregates_figure,
    curves_figure,
    finals_figure,
    fitness_figure,
    front_figure,
    lag_figure,
    lineage_figure,
    matrix_figure,
    schedules_figure,
    sensitivity_figure,
    time_figure,
    timeline_figure,
)
from phyla.report.page import Section, write_comparison_report, write_evaluation_report, write_report
from phyla.report.times import TimeSpent, time_spent
from phyla.report.words import p_words

__all__ = [
    "CheckpointPaths",
    "ComparedStudy",
    "EvaluationData",
    "Section",
    "StudyComparison",
    "StudyData",
    "TimeSpent",
    "aggregates_figure",
    "compare_studies",
    "curves_figure",
    "finals_figure",
    "fitness_figure",
    "front_figure",
    "lag_figure",
    "lineage_figure",
    "matrix_figure",
    "p_words",
    "schedules_figure",
    "sensitivity_figure",
    "time_figure",
    "time_spent",
    "timeline_figure",
    "write_comparison_report",
    "write_evaluation_report",
    "write_report",
]
