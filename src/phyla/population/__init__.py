"""Decisions about a population: strategies, exploit and explore rules, fitness. Pure."""

from phyla.population.asha import ASHA
from phyla.population.backtrack import Backtrack
from phyla.population.crossover import Crossover
from phyla.population.decision import Decision, Measure, Start, Stop, Wait
from phyla.population.exploit import Exploit, Exploited, ExploitPipeline, Truncation
from phyla.population.explore import Explore, Explored, ExplorePipeline, Perturb, Resample
from phyla.population.explore_with import ExploreWith
from phyla.population.fitness import BestOfLast, FitnessRule, Last, MeanOfLast
from phyla.population.fixed_schedule import FixedSchedule
from phyla.population.from_suite import FromSuite
from phyla.population.initiator import InitiatorPBT
from phyla.population.keeps import NOTHING, Keeps
from phyla.population.pb2 import PB2
from phyla.population.pbt import PBT
from phyla.population.protocol import Population
from phyla.population.randomness import decision_rng, trial_seed
from phyla.population.reasons import describe
from phyla.population.search import GridSearch, RandomSearch
from phyla.population.single_worker import SingleWorkerExplore
from phyla.population.strategy import Context, Strategy
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
    "InitiatorPBT",
    "Keeps",
    "Last",
    "MeanOfLast",
    "Measure",
    "Perturb",
    "Population",
    "RandomSearch",
    "Resample",
    "SingleWorkerExplore",
    "Start",
    "Stop",
    "Strategy",
    "TTest",
    "Truncation",
    "Wait",
    "WinnerTakesAll",
    "decision_rng",
    "describe",
    "trial_seed",
]
