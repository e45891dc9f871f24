"""Studies on a virtual clock: the real machine decides, and nothing is trained.

It takes the place of workers, so it stands where they do: above the controller, whose transactions it makes.
"""

from phyla.simulation.curve import Fitness, LearningCurve
from phyla.simulation.durations import Durations, Hazards
from phyla.simulation.invariants import MachineDefect
from phyla.simulation.outcome import EvaluationLag, SimulatedRun, Steps, WorkerSeconds
from phyla.simulation.simulator import Simulator
from phyla.simulation.workers import BOTH, Crew

__all__ = [
    "BOTH",
    "Crew",
    "Durations",
    "EvaluationLag",
    "Fitness",
    "Hazards",
    "LearningCurve",
    "MachineDefect",
    "SimulatedRun",
    "Simulator",
    "Steps",
    "WorkerSeconds",
]
