"""For authors of strategies: check one against the contract, and predict its cost on a virtual clock.

The real controller decides on a store in memory, and nothing is trained.
"""

from phyla.testing.checking import check_strategy
from phyla.testing.conditions import LearningCurve
from phyla.testing.outcome import EvaluationLag, SimulatedRun
from phyla.testing.simulating import Simulated, simulate

__all__ = ["EvaluationLag", "LearningCurve", "Simulated", "SimulatedRun", "check_strategy", "simulate"]
