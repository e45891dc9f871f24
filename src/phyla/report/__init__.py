"""Figures and reports of studies and evaluations, from records; Plotly is imported with the first figure."""

from phyla.report.compared import ComparedStudy
from phyla.report.comparison import StudyComparison, compare_studies
from phyla.report.data import EvaluationData, StudyData
from phyla.report.figures import COMPARISON_FIGURES, EVALUATION_FIGURES, STUDY_FIGURES
from phyla.report.page import write_pages
from phyla.report.sections import evaluation_sections, study_sections

__all__ = [
    "COMPARISON_FIGURES",
    "EVALUATION_FIGURES",
    "STUDY_FIGURES",
    "ComparedStudy",
    "EvaluationData",
    "StudyComparison",
    "StudyData",
    "compare_studies",
    "evaluation_sections",
    "study_sections",
    "write_pages",
]
