"""Decisions about a population: strategies, exploit, explore and stopping rules, fitness. Pure."""

from phyla.arguments import suggest_arguments
from phyla.strategies.asha import ASHA
from phyla.strategies.backtrack import Backtrack
from phyla.strategies.crossover import Crossover
from phyla.strategies.decision import Decision, Measure, Start, Stop, Wait
from phyla.strategies.divergence import Divergence
from phyla.strategies.exploit import Exploit, Exploited, ExploitPipeline, Truncation
from phyla.strategies.explore import Explore, Explored, ExplorePipeline, Perturb, Resample
from phyla.strategies.explore_with import ExploreWith
from phyla.strategies.fitness import BestOfLast, FitnessRule, Last, MeanOfLast
from phyla.strategies.fixed_schedule import FixedSchedule
from phyla.strategies.from_suite import FromSuite
from phyla.strategies.fronts import crowding, dominates, front_of, front_ranks, thinned
from phyla.strategies.initiator import InitiatorPBT
from phyla.strategies.keeps import NOTHING, Keeps
from phyla.strategies.median_stopping import MedianStopping
from phyla.strategies.pareto import ParetoTournament, ParetoTruncation
from phyla.strategies.parts import check_space, check_strategy
from phyla.strategies.pb2 import PB2
from phyla.strategies.pbt import PBT
from phyla.strategies.protocol import History, Population, lowest_generation, ranked, ranked_best
from phyla.strategies.randomness import decision_rng, trial_seed
from phyla.strategies.reasons import describe
from phyla.strategies.replay import Replay
from phyla.strategies.search import GridSearch, RandomSearch
from phyla.strategies.single_worker import SingleWorkerExplore
from phyla.strategies.stop_with import StopWith
from phyla.strategies.stopping import Others, Reported, StoppingRule, check_rule
from phyla.strategies.strategy import Context, Strategy, steps_to_line
from phyla.strategies.tournament import BinaryTournament, TTest, WinnerTakesAll

__all__ = [
    "ASHA",
    "NOTHING",
    "PB2",
    "PBT",
    "Backtrack",
    "BestOfLast",
    "BinaryTournament",
    "Context",
    "Crossover",
    "Decision",
    "Divergence",
    "Exploit",
    "ExploitPipeline",
    "Exploited",
    "Explore",
    "ExplorePipeline",
    "ExploreWith",
    "Explored",
    "FitnessRule",
    "FixedSchedule",
    "FromSuite",
    "GridSearch",
    "History",
    "InitiatorPBT",
    "Keeps",
    "Last",
    "MeanOfLast",
    "Measure",
    "MedianStopping",
    "Others",
    "ParetoTournament",
    "ParetoTruncation",
    "Perturb",
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
    "Truncation",
    "Wait",
    "WinnerTakesAll",
    "check_rule",
    "check_space",
    "check_strategy",
    "crowding",
    "decision_rng",
    "describe",
    "dominates",
    "front_of",
    "front_ranks",
    "lowest_generation",
    "ranked",
    "ranked_best",
    "steps_to_line",
    "thinned",
    "trial_seed",
]

suggest_arguments(
    ASHA,
    PB2,
    PBT,
    Backtrack,
    BestOfLast,
    BinaryTournament,
    Crossover,
    Divergence,
    ExploitPipeline,
    ExplorePipeline,
    ExploreWith,
    FixedSchedule,
    FromSuite,
    GridSearch,
    InitiatorPBT,
    Last,
    MeanOfLast,
    MedianStopping,
    ParetoTournament,
    ParetoTruncation,
    Perturb,
    RandomSearch,
    Replay,
    Resample,
    SingleWorkerExplore,
    StopWith,
    TTest,
    Truncation,
    WinnerTakesAll,
)
