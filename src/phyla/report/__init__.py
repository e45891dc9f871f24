"""Figures and reports of a study and of evaluations, from records; Plotly is imported with the first figure."""

from phyla.report.aggregates import aggregates_figure
from phyla.report.comparison import ComparedStudy, StudyComparison, compare_studies
from phyla.report.comparison_figures import curves_figure, finals_figure, sensitivity_figure
from phyla.report.comparison_page import p_words, write_comparison_report
from phyla.report.data import CheckpointPaths, StudyData
from phyla.report.evaluation import EvaluationData
from phyla.report.evaluation_page import write_evaluation_report
from phyla.report.fitness import fitness_figure
from phyla.report.front import front_figure
from phyla.report.html import write_report
from phyla.report.lag import lag_figure
from phyla.report.matrix import matrix_figure
from phyla.report.page import Section
from phyla.report.schedules import schedules_figure
from phyla.report.timeline import timeline_figure
from phyla.report.times import TimeSpent, time_figure, time_spent
from phyla.report.tree import lineage_figure

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
