"""Decisions about a population: strategies, exploit, explore and stopping rules, fitness. Pure.

`exploit`, `explore` and `stopping` hold the rules, one file each beside the contract; strategies are here.

Creating a strategy or rule with settings that are out of range or inconsistent raises a ConfigurationError with
the setting, its value, and the allowed values.
"""

from dataclasses import is_dataclass

from phyla.strategies.asha import ASHA
from phyla.strategies.describe import describe
from phyla.strategies.exploit import Exploit, Exploited, ExploitPipeline
from phyla.strategies.exploit.backtrack import Backtrack
from phyla.strategies.exploit.multi_frequency import MultiFrequency
from phyla.strategies.exploit.pareto import ParetoTournament, ParetoTruncation
from phyla.strategies.exploit.threshold import Threshold
from phyla.strategies.exploit.tournament import BinaryTournament, TTest
from phyla.strategies.exploit.truncation import Truncation, WinnerTakesAll
from phyla.strategies.explore import Explore, Explored, ExplorePipeline
from phyla.strategies.explore.crossover import Crossover
from phyla.strategies.explore.mutate import Mutate
from phyla.strategies.explore.pb2 import PB2
from phyla.strategies.explore.perturb import ExploreWith, Perturb, Resample
from phyla.strategies.final import Expected, Final
from phyla.strategies.fitness import BestOfLast, Estimated, FitnessRule, FromSuite, Last, MeanOfLast
from phyla.strategies.fronts import crowding, dominates, first_front, front_of, front_ranks, thinned
from phyla.strategies.initiator import InitiatorPBT
from phyla.strategies.pbt import PBT
from phyla.strategies.replay import FixedSchedule, Replay
from phyla.strategies.search import GridSearch, RandomSearch
from phyla.strategies.single_worker import SingleWorkerExplore
from phyla.strategies.starts import fresh, proceed, sampled, steps_to_line
from phyla.strategies.stopping import Others, Reported, StoppingRule, StopWith, check_rule
from phyla.strategies.stopping.divergence import Divergence
from phyla.strategies.stopping.median import MedianStopping
from phyla.strategies.stopping.plateau import Plateau
from phyla.strategies.strategy import (
    Context,
    Decision,
    History,
    Measure,
    Population,
    Start,
    Stop,
    Strategy,
    Wait,
    check_space,
    decision_rng,
    lowest_generation,
    ranked,
    ranked_best,
    require_strategy,
    trial_seed,
)
from phyla.validation import suggest_arguments

__all__ = [
    "ASHA",
    "PB2",
    "PBT",
    "Backtrack",
    "BestOfLast",
    "BinaryTournament",
    "Context",
    "Crossover",
    "Decision",
    "Divergence",
    "Estimated",
    "Expected",
    "Exploit",
    "ExploitPipeline",
    "Exploited",
    "Explore",
    "ExplorePipeline",
    "ExploreWith",
    "Explored",
    "Final",
    "FitnessRule",
    "FixedSchedule",
    "FromSuite",
    "GridSearch",
    "History",
    "InitiatorPBT",
    "Last",
    "MeanOfLast",
    "Measure",
    "MedianStopping",
    "MultiFrequency",
    "Mutate",
    "Others",
    "ParetoTournament",
    "ParetoTruncation",
    "Perturb",
    "Plateau",
    "Population",
    "RandomSearch",
    "Replay",
    "Reported",
    "Resample",
    "SingleWorkerExplore",
    "Start",
    "Stop",
    "StopWith",
    "StoppingRule",
    "Strategy",
    "TTest",
    "Threshold",
    "Truncation",
    "Wait",
    "WinnerTakesAll",
    "check_rule",
    "check_space",
    "crowding",
    "decision_rng",
    "describe",
    "dominates",
    "first_front",
    "fresh",
    "front_of",
    "front_ranks",
    "lowest_generation",
    "proceed",
    "ranked",
    "ranked_best",
    "require_strategy",
    "sampled",
    "steps_to_line",
    "thinned",
    "trial_seed",
]

suggest_arguments(*(globals()[name] for name in __all__ if is_dataclass(globals()[name])))
