"""Decisions about a population: strategies, exploit, explore and stopping rules, fitness. Pure."""

from phyla.arguments import suggest_arguments
from phyla.population.asha import ASHA
from phyla.population.backtrack import Backtrack
from phyla.population.crossover import Crossover
from phyla.population.decision import Decision, Measure, Start, Stop, Wait
from phyla.population.divergence import Divergence
from phyla.population.exploit import Exploit, Exploited, ExploitPipeline, Truncation
from phyla.population.explore import Explore, Explored, ExplorePipeline, Perturb, Resample
from phyla.population.explore_with import ExploreWith
from phyla.population.fitness import BestOfLast, FitnessRule, Last, MeanOfLast
from phyla.population.fixed_schedule import FixedSchedule
from phyla.population.from_suite import FromSuite
from phyla.population.fronts import crowding, dominates, front_of, front_ranks, thinned
from phyla.population.initiator import InitiatorPBT
from phyla.population.keeps import NOTHING, Keeps
from phyla.population.median_stopping import MedianStopping
from phyla.population.pareto import ParetoTournament, ParetoTruncation
from phyla.population.parts import check_space, check_strategy
from phyla.population.pb2 import PB2
from phyla.population.pbt import PBT
from phyla.population.protocol import History, Population, lowest_generation, ranked, ranked_best
from phyla.population.randomness import decision_rng, trial_seed
from phyla.population.reasons import describe
from phyla.population.replay import Replay
from phyla.population.search import GridSearch, RandomSearch
from phyla.population.single_worker import SingleWorkerExplore
from phyla.population.stop_with import StopWith
from phyla.population.stopping import Others, Reported, StoppingRule, check_rule
from phyla.population.strategy import Context, Strategy, steps_to_line
from phyla.population.tournament import BinaryTournament, TTest, WinnerTakesAll

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
