"""Lineages: which trial came from which, and the schedule of hyperparameters along the way. Pure."""

from phyla.lineage.lineage import Lineage, Schedule, Segment

__all__ = ["Lineage", "Schedule", "Segment"]
