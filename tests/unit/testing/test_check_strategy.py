"""`check_strategy` says in words what a strategy does wrong."""

import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from phyla.evaluation import EvalTask, Suite
from phyla.records import Member
from phyla.strategies import PBT, Context, Decision, FromSuite, Population, Start, Stop, Strategy, Wait, sampled
from phyla.strategies.starts import scored_trial, true_ancestry
from phyla.testing import check_strategy

GLOBAL: Any = np.random


def unchanged(start: Start, member: Member, context: Context) -> Decision:
    return start


@dataclass(frozen=True)
class Planted(Strategy):
    """Draws hyperparameters for each two steps, and changes the decision."""

    change: Callable[[Start, Member, Context], Decision] = unchanged
    population_size: int = 3
    total_steps: int = 8
    quorum: float = 0.0
    labels: Any = None

    def decide(self, member: Member, population: Population, context: Context) -> Decision:
        return self.change(replace(sampled(member, 2, context), weights=member.head), member, context)


class NeverEnds(Planted):
    """Trains on and on."""

    def finished(self, member: Member) -> bool:
        return False


class EndsLate(Planted):
    """Trains for a step more."""

    def finished(self, member: Member) -> bool:
        return member.progress > self.total_steps


def with_rate(start: Start, rate: float) -> Start:
    return replace(start, params={**start.params, "rate": rate})


def draws_from_numpy(start: Start, member: Member, context: Context) -> Decision:
    return with_rate(start, GLOBAL.uniform(0.1, 1.0))


def draws_from_python(start: Start, member: Member, context: Context) -> Decision:
    return with_rate(start, random.uniform(0.1, 1.0))


def leaves_the_space(start: Start, member: Member, context: Context) -> Decision:
    return with_rate(start, 2.0)


def looks_at_the_clock(start: Start, member: Member, context: Context) -> Decision:
    return with_rate(start, 1.0 / (1.0 + context.now))


def starts_beyond_the_end(start: Start, member: Member, context: Context) -> Decision:
    return replace(start, steps=3)


def stops_early(start: Start, member: Member, context: Context) -> Decision:
    return start if member.progress < 4 else Stop()


def waits(start: Start, member: Member, context: Context) -> Decision:
    return start if member.progress < 4 else Wait()


def gives_no_reason(start: Start, member: Member, context: Context) -> Decision:
    return replace(start, reason={})


def reasons_in_sets(start: Start, member: Member, context: Context) -> Decision:
    no_json: Any = {"why": {1}}
    return replace(start, reason=no_json)


def reasons_with_nan(start: Start, member: Member, context: Context) -> Decision:
    return replace(start, reason={"decision": "start", "scores": [1.0, float("nan")]})


def takes_from_nowhere(start: Start, member: Member, context: Context) -> Decision:
    return replace(start, params_from=10_000)


def fails_without_a_score(start: Start, member: Member, context: Context) -> Decision:
    return start if member.head is None else with_rate(start, 10 ** -round(abs(member.head.fitness or 0.0)))


def fails_after_broken_trials(start: Start, member: Member, context: Context) -> Decision:
    return start if member.broken_trial is None else with_rate(start, 2.0)


def starts_from_the_first(start: Start, member: Member, context: Context) -> Decision:
    if member.head is None:
        return start
    *_, first = true_ancestry(member.head.trial, context.history)
    return replace(start, weights=scored_trial(first))


def changes_in_place(start: Start, member: Member, context: Context) -> Decision:
    for state in member.states:
        values: Any = state.params
        values["rate"] = 0.5
    return start


class Keeps(Planted):
    """Keeps all checkpoints."""

    keeps_generations = 1000


WRONG: dict[str, tuple[Any, str]] = {
    "never ends": (NeverEnds(), "a study has not ended after 300 trials; see `finished` and Stop"),
    "numpy.random": (Planted(draws_from_numpy), "with the same seed: draw from context.rng only"),
    "random": (Planted(draws_from_python), "with the same seed: draw from context.rng only"),
    "outside": (Planted(leaves_the_space), "proposes what the space does not allow: rate: 2.0 is outside"),
    "clock": (Planted(looks_at_the_clock, quorum=1.0), "it decides differently with 4 workers than with 1"),
    "too long": (EndsLate(), "trains weights to an age of 9 steps; member_steps is 8"),
    "too short": (Planted(stops_early), "member 0 ended after 4 steps; member_steps is 8"),
    "waits": (Planted(waits), "every member waits for another and nothing is running"),
    "no reason": (Planted(gives_no_reason), "was decided without a reason"),
    "a reason that is no JSON": (Planted(reasons_in_sets), "reason['why'] of a decision of Planted is {1}"),
    "a reason with nan": (Planted(reasons_with_nan), "has a number that JSON has not"),
    "hyperparameters of no trial": (Planted(takes_from_nowhere), "params_from=10000"),
    "nan": (Planted(fails_without_a_score), "cannot convert float NaN to integer"),
    "broken": (Planted(fails_after_broken_trials), "rate: 2.0 is outside"),
    "deleted": (Planted(starts_from_the_first, total_steps=40), "set keeps_generations or keeps_best"),
    "in place": (Planted(changes_in_place), "change a copy"),
    "a tuple": (Planted(labels=("a",)), "JSON has lists, but no tuples"),
    "an object": (Planted(labels=object()), "cannot be stored with the study"),
    "no strategy": (object(), "cannot be stored with the study"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_a_strategy_does_wrong_is_said(name: str) -> None:
    strategy, reason = WRONG[name]
    with pytest.raises(AssertionError) as failed:
        check_strategy(strategy, most_trials=300)
    assert reason in str(failed.value)


@pytest.mark.parametrize("change", [unchanged, starts_beyond_the_end])
@pytest.mark.parametrize("quorum", [0.0, 1.0])
def test_a_strategy_that_does_nothing_wrong_passes(change: Any, quorum: float) -> None:
    check_strategy(Planted(change, quorum=quorum))


def test_a_strategy_may_start_from_old_checkpoints_that_it_keeps() -> None:
    check_strategy(Keeps(starts_from_the_first, total_steps=20))


def never(_evaluation: object) -> None:
    raise AssertionError("nothing is evaluated")


@pytest.mark.parametrize("max_lag", [0, 2])
def test_fitness_may_come_from_a_suite(max_lag: int) -> None:
    fitness = FromSuite("held", "q_mean", max_lag=max_lag)
    strategy = PBT(population_size=3, steps_per_trial=2, total_steps=8, fitness=fitness, quorum=1.0)
    check_strategy(strategy, suites=[Suite("held", [EvalTask("q", never)])])


def test_pytest_is_not_needed() -> None:
    told = "import sys, phyla.testing; print('pytest' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", told], text=True) == "False\n"
