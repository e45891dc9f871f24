"""Studies on a virtual clock: the real machine decides, and nothing is trained.

It takes the place of workers, so it stands where they do: above the controller, whose transactions it makes.
"""

from phyla.simulation.conditions import Conditions, Fitness, LearningCurve
from phyla.simulation.outcome import EvaluationLag, SimulatedRun
from phyla.simulation.simulator import Simulator
