"""Figures and reports of studies and evaluations, from records; Plotly is imported with the first figure."""

from phyla.report.compared import ComparedStudy
from phyla.report.comparison import StudyComparison, compare_studies
from phyla.report.data import EvaluationData, StudyData
from phyla.report.figures import COMPARISON_FIGURES, EVALUATION_FIGURES, STUDY_FIGURES
from phyla.report.page import write_comparison_report, write_evaluation_report, write_report

__all__ = [
    "COMPARISON_FIGURES",
    "EVALUATION_FIGURES",
    "STUDY_FIGURES",
    "ComparedStudy",
    "EvaluationData",
    "StudyComparison",
    "StudyData",
    "compare_studies",
    "write_comparison_report",
    "write_evaluation_report",
    "write_report",
]
