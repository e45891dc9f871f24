"""Figures and a report of one study, from its records; Plotly is imported when the first figure is drawn."""

from phyla.report.data import CheckpointPaths, StudyData
from phyla.report.fitness import fitness_figure
from phyla.report.html import Section, write_report
from phyla.report.schedules import schedules_figure
from phyla.report.timeline import timeline_figure
from phyla.report.tree import lineage_figure

__all__ = [
    "CheckpointPaths",
    "Section",
    "StudyData",
    "fitness_figure",
    "lineage_figure",
    "schedules_figure",
    "timeline_figure",
    "write_report",
]
