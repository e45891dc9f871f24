"""Figures and reports of studies and evaluations, from records; Plotly is imported with the first figure."""

from phyla.report.comparison import ComparedStudy, StudyComparison, compare_studies
from phyla.report.data import StudyData
from phyla.report.evaluation_data import EvaluationData
from phyla.report.page import write_comparison_report, write_evaluation_report, write_report
from phyla.report.times import TimeSpent, time_spent
from phyla.report.words import p_words

__all__ = [
    "ComparedStudy",
    "EvaluationData",
    "StudyComparison",
    "StudyData",
    "TimeSpent",
    "compare_studies",
    "p_words",
    "time_spent",
    "write_comparison_report",
    "write_evaluation_report",
    "write_report",
]
