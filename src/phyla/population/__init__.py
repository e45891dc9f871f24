"""Decisions about a population: strategies, exploit and explore rules, fitness. Pure."""

from phyla.population.decision import Decision, Measure, Start, Stop, Wait
from phyla.population.exploit import Exploit, Exploited, ExploitPipeline, Truncation
from phyla.population.explore import Explore, Explored, ExplorePipeline, Perturb, Resample
from phyla.population.fitness import BestOfLast, FitnessRule, Last, MeanOfLast
from phyla.population.pbt import PBT
from phyla.population.protocol import Population
from phyla.population.randomness import decision_rng, trial_seed
from phyla.population.reasons import describe
from phyla.population.strategy import Context, Strategy

__all__ = [
    "PBT",
    "BestOfLast",
    "Context",
    "Decision",
    "Exploit",
    "ExploitPipeline",
    "Exploited",
    "Explore",
    "ExplorePipeline",
    "Explored",
    "FitnessRule",
    "Last",
    "MeanOfLast",
    "Measure",
    "Perturb",
    "Population",
    "Resample",
    "Start",
    "Stop",
    "Strategy",
    "Truncation",
    "Wait",
    "decision_rng",
    "describe",
    "trial_seed",
]
