"""Suites of tasks of lm-evaluation-harness: `suite(["arc_easy", "hellaswag"])`, or `phyla watch --lm-eval`.

Each task of the harness is an eval task. The harness computes the values and standard errors, and what it logs of
each document is saved.
"""

from phyla.integrations.lm_eval.evaluation import Loaded, LoadModel, evaluate
from phyla.integrations.lm_eval.group_means import GroupMeans
from phyla.integrations.lm_eval.suites import suite

__all__ = ["GroupMeans", "LoadModel", "Loaded", "evaluate", "suite"]
