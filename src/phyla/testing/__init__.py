"""For authors of plug-ins: check one against its contract, and predict the cost of a strategy on a virtual clock.

Checks raise AssertionError, whatever runs the tests. A strategy is checked by the real controller on a store in
memory, and nothing is trained. A launcher starts real processes, a format looks at files that you write, and
checkpoints are saved where a study would save them.
"""

from phyla.testing.checking import check_strategy
from phyla.testing.checkpoints import check_checkpoints
from phyla.testing.conditions import LearningCurve
from phyla.testing.formats import check_format
from phyla.testing.launchers import check_launcher
from phyla.testing.outcome import EvaluationLag, SimulatedRun
from phyla.testing.simulating import Simulated, simulate

__all__ = [
    "EvaluationLag",
    "LearningCurve",
    "Simulated",
    "SimulatedRun",
    "check_checkpoints",
    "check_format",
    "check_launcher",
    "check_strategy",
    "simulate",
]
