"""Asynchronous successive halving: who is promoted, who waits, who is stopped, and how many reach which rung."""

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import rarely, times
from facts import raises
from phyla.errors import ConfigurationError
from phyla.machine import TrainRules
from phyla.records import (
    Constrained,
    JobState,
    Maximize,
    MemberState,
    Minimize,
    Objective,
    StudyState,
    TrialRecord,
)
from phyla.space import Float, Space
from phyla.strategies import ASHA, FromSuite, Start, Stop, Wait, describe
from populations import Listed, context
from simulation import Simulation, VirtualClock

SPACE = Space(lr=Float(0.1, 1.0))
Fitness = Callable[[TrialRecord], float]
FITNESSES: dict[str, Fitness] = {
    "by hyperparameter": lambda trial: float(str(trial.params["lr"])),
    "noisy": lambda trial: float(np.random.default_rng(trial.seed).normal()),
    "rising": lambda trial: float(trial.id),
    "falling": lambda trial: -float(trial.id),
    "constant": lambda trial: 1.0,
    "few values": lambda trial: float(trial.seed % 3),
    "nan": lambda trial: math.nan,
    "sometimes nan": lambda trial: math.nan if trial.seed % 3 == 0 else float(trial.seed % 7),
}


def ran(
    strategy: ASHA, fitness: Fitness, workers: int = 1, seed: int = 0, failure_rate: float = 0.0
) -> list[TrialRecord]:
    rules = TrainRules(space=SPACE, objective=Maximize("Q"), strategy=strategy, max_attempts=3, max_broken=1000)
    simulation = Simulation(rules, lambda parent, trial: (None, fitness(trial)), seed=seed)
    ended = simulation.run(workers, np.random.default_rng(seed), failure_rate=failure_rate)
    assert ended.state is StudyState.COMPLETED, ended.message
    with simulation.store.reader(simulation.study.id) as reader:
        assert {member.state for member in reader.members()} == {MemberState.DONE}
        return [trial for trial in reader.trials() if trial.state is JobState.COMPLETED]


def at_rungs(done: list[TrialRecord]) -> list[int]:
    counts = Counter(trial.generation for trial in done)
    return [counts[rung] for rung in range(max(counts) + 1)]


def test_rungs_are_powers_of_the_factor_and_the_last_is_the_whole_training() -> None:
    assert ASHA(27, 27, 1).rungs == (1, 3, 9, 27)
    assert ASHA(9, 20, 3, 2).rungs == (3, 6, 12, 20)
    assert ASHA(9, 5, 5).rungs == (5,)


def test_one_worker_halves_exactly() -> None:
    done = ran(ASHA(27, 27, 1), FITNESSES["by hyperparameter"])
    assert at_rungs(done) == [27, 9, 3, 1]
    lr = {trial.member: trial.params["lr"] for trial in done}
    best = sorted(lr, key=lambda member: float(str(lr[member])), reverse=True)
    for rung, count in ((1, 9), (2, 3), (3, 1)):
        assert {t.member for t in done if t.generation == rung} == set(best[:count])
    (whole,) = [trial for trial in done if trial.generation == 3]
    assert (whole.start_step, whole.end_step) == (9, 27)
    assert describe(whole.reason) == "promoted from rung 2 (1 of 3)"
    assert len({str(trial.params) for trial in done}) == 27


def made(members: int, total: int, least: int, factor: int, quorum: float = 0.0) -> ASHA:
    """Return ASHA, with the first rung moved up to where a member reaches the last."""
    try:
        return ASHA(members, total, least, factor, quorum=quorum)
    except ConfigurationError as error:
        higher = re.search(r"min_steps=(\d+)$", str(error))
        assert higher is not None
        return ASHA(members, total, int(higher[1]), factor, quorum=quorum)


@given(
    members=st.integers(1, 30),
    total=st.integers(1, 40),
    least=st.integers(1, 40),
    factor=st.integers(2, 5),
    workers=st.integers(1, 12),
    name=st.sampled_from(sorted(FITNESSES)),
    failure_rate=st.sampled_from([0.0, 0.4]),
    quorum=st.sampled_from([0.0, 0.8, 1.0]),
    seed=st.integers(0, 2**20),
)
@settings(max_examples=times(12, 100))
def test_every_study_ends_and_every_rung_holds_what_it_should(
    members: int,
    total: int,
    least: int,
    factor: int,
    workers: int,
    name: str,
    failure_rate: float,
    quorum: float,
    seed: int,
) -> None:
    strategy = made(members, total, min(least, total), factor, quorum)
    done = ran(strategy, FITNESSES[name], workers, seed, failure_rate)
    rungs = at_rungs(done)
    assert rungs[0] == members
    for rung in range(len(strategy.rungs) - 1):
        completed = [trial for trial in done if trial.generation == rung]
        finite = sum(trial.fitness is not None and math.isfinite(trial.fitness) for trial in completed)
        least_promoted = min(len(completed) // factor, finite)
        promoted = rungs[rung + 1] if rung + 1 < len(rungs) else 0
        assert promoted >= least_promoted
        assert promoted <= (least_promoted if quorum == 1 else max(0, len(completed) - factor + 1))
    assert len(rungs) <= len(strategy.rungs)


@given(
    members=st.integers(2, 30),
    factor=st.integers(2, 4),
    workers=st.integers(1, 12),
    few=st.sampled_from([2, 5, 10**9]),
    objective=st.sampled_from([Maximize("Q"), Minimize("Q"), Constrained(Maximize("Q"), ["cost <= 1"])]),
    quorum=st.sampled_from([0.0, 1.0]),
    seed=st.integers(0, 2**20),
)
@settings(max_examples=times(12, 200))
def test_the_best_of_those_that_have_come_are_promoted_and_no_other(
    members: int, factor: int, workers: int, few: int, objective: Objective, quorum: float, seed: int
) -> None:
    """An independent simulation of the ranking, from the order in which trials ended and were promoted."""
    strategy, clock = made(members, 40, 1, factor, quorum), VirtualClock()

    def train(parent: object, trial: TrialRecord) -> tuple[None, dict[str, float]]:
        clock.now += 1
        draw = np.random.default_rng((seed, trial.seed))
        return None, {"Q": float(draw.integers(few)), "cost": float(draw.integers(3))}

    rules = TrainRules(space=SPACE, objective=objective, strategy=strategy, lease_s=1e9)
    simulation = Simulation(rules, train, seed=seed, clock=clock)
    assert simulation.run(workers, np.random.default_rng(seed)).state is StudyState.COMPLETED
    with simulation.store.reader(simulation.study.id) as reader:
        trials = list(reader.trials())

    def best(rung: int, now: float, promoted: Sequence[int]) -> set[int]:
        come = [one for one in trials if one.generation == rung and (one.ended_at or 0.0) <= now]
        order = {one.member: -math.inf if one.order is None else one.order for one in come}
        first = {member: place for place, member in enumerate(promoted)}
        ranking = sorted(order, key=lambda member: (-order[member], first.get(member, members), member))
        return {member for member in ranking[: len(ranking) // factor] if order[member] > -math.inf}

    for rung in range(len(strategy.rungs) - 1):
        promotions = [one for one in trials if one.generation == rung + 1]
        promoted = [one.member for one in promotions]
        for place, promotion in enumerate(promotions):
            assert promotion.member in best(rung, promotion.created_at, promoted[:place])
        last = best(rung, math.inf, promoted)
        assert last <= set(promoted)
        assert quorum < 1 or last == set(promoted)


def test_whoever_leads_when_few_have_arrived_is_promoted_at_once() -> None:
    rungs = at_rungs(ran(ASHA(12, 6, 2), FITNESSES["rising"], workers=12, seed=1))
    assert rungs[1] > 4


def test_promote_wait_or_stop() -> None:
    strategy = ASHA(9, 9, 1)
    population = Listed([5.0], [4.0], [3.0], [math.nan], [1.0], [0.5], [], [], [])

    def decided(index: int) -> Any:
        return strategy.decide(population.member(index), population, context(history=population))

    running = population.add(6, 0, 0.0, None)
    population.trials[running] = replace(population.trials[running], state=JobState.RUNNING, order=None)
    place = {"rule": "asha", "rung": 0, "of": 6}
    no_longer = "it can no longer be among the best of rung 0"
    for rank, start in enumerate([decided(0), decided(1)], 1):
        assert isinstance(start, Start)
        assert start.reason == {"decision": "promote", "compared": {**place, "rank": rank}}
        assert (start.steps, start.weights) == (2, population.member(rank - 1).head)
    wait = decided(2)
    assert isinstance(wait, Wait)
    assert wait.reason == {**place, "rank": 3, "why": "others at rung 0"}
    for index, rank in ((4, 4), (5, 5)):
        stop = decided(index)
        assert isinstance(stop, Stop)
        assert stop.reason == {**place, "rank": rank, "why": no_longer}
    assert isinstance(decided(3), Stop)
    assert decided(3).reason["why"] == "its score is not finite"
    population.trials[running] = replace(population.trials[running], generation=1)
    assert isinstance(decided(2), Stop), "who is beyond the rung cannot help it any more"
    del population.trials[running]
    stop = decided(2)
    assert isinstance(stop, Stop)
    assert stop.reason == {**place, "rank": 3, "why": no_longer}


def test_shares_are_rounded_down() -> None:
    population = Listed([5.0], [4.0], [3.0], [2.0], [])
    strategy, second = ASHA(5, 3, 1), population.member(1)
    assert isinstance(strategy.decide(population.member(0), population, context(history=population)), Start)
    running = population.add(4, 0, 0.0, None)
    population.trials[running] = replace(population.trials[running], state=JobState.RUNNING, order=None)
    # The second of four is not among their third, and will not be among that of five.
    assert isinstance(strategy.decide(second, population, context(history=population)), Stop)
    assert isinstance(ASHA(6, 3, 1).decide(second, population, context(history=population)), Wait)


def test_a_member_waits_for_its_evaluation_and_is_tried_again_when_it_breaks() -> None:
    population = Listed([5.0], [4.0], [3.0])
    member = population.member(0)
    head = member.head
    assert head is not None

    def decided(**given: Any) -> Any:
        return ASHA(9, 9, 1).decide(replace(member, **given), population, context(history=population))

    waiting = decided(head=replace(head, measurements=0))
    assert isinstance(waiting, Wait)
    assert waiting.reason == {"why": "its evaluation"}
    assert decided(head=replace(head, order=None)).reason == {"why": "its score is not finite"}
    again = decided(broken_trial=7, replacements=2)
    assert isinstance(again, Start)
    assert (again.weights, again.steps, again.reason) == (head, 2, {"decision": "continue", "replaces": 7})
    broken, stopped = decided(broken_trial=7, replacements=3), decided(broken_trial=7, stops=1)
    assert isinstance(broken, Stop)
    assert isinstance(stopped, Stop)
    assert broken.reason == {"why": "its trials broke again", "trial": 7}
    assert stopped.reason == {"why": "a stopping rule ended its trial", "trial": 7}
    first = decided(head=None, generation=0, progress=0)
    assert isinstance(first, Start)
    assert (first.weights, first.params_from, first.steps, first.reason["decision"]) == (None, None, 1, "start")
    assert decided(progress=9).steps == 1, "a rung that was lowered may be behind it"


@pytest.mark.parametrize(
    ("given", "finished", "line"),
    [
        ({"generation": 0, "progress": 0}, False, 0),
        ({"generation": 1, "progress": 1}, False, 1),
        ({"generation": 2, "progress": 8}, False, 2),
        ({"generation": 3, "progress": 9}, True, 3),
        ({"generation": 3, "progress": 8}, True, 2),
        ({"generation": 1, "progress": 9}, True, 3),
    ],
)
def test_who_has_finished(given: dict[str, Any], finished: bool, line: int) -> None:
    member = replace(Listed([1.0]).member(0), **given)
    assert ASHA(9, 9, 1).finished(member) == finished
    assert ASHA(9, 9, 1).line(member.progress) == line


def test_of_equal_scores_the_one_promoted_earlier_goes_first_then_the_lower_index() -> None:
    population = Listed([1.0], [1.0], [1.0], [1.0], [2.0], [math.nan])

    def ranks() -> list[Any]:
        decisions = [
            ASHA(6, 6, 1, 6).decide(member, population, context(history=population))
            for member in population.slots[:4]
        ]
        return [one.reason.get("rank") for one in decisions]

    assert ranks() == [2, 3, 4, 5]
    promoted = population.add(2, 1, 0.0, None)
    assert ranks() == [3, 4, 4, 5]
    population.trials[promoted] = replace(population.trials[promoted], state=JobState.RUNNING, order=None)
    assert ranks() == [3, 4, 4, 5]
    population.trials[promoted] = replace(population.trials[promoted], generation=0)
    assert ranks() == [2, 3, 4, 5]
    del population.trials[promoted]
    population.slots[3] = replace(population.slots[3], broken_trial=9)
    assert ranks() == [3, 4, 5, None]


def test_a_minimised_objective() -> None:
    population = Listed([5.0], [4.0], [3.0], objective=Minimize("loss"))
    decisions = [
        ASHA(9, 9, 1).decide(member, population, context(history=population)) for member in population.slots
    ]
    assert [type(one) for one in decisions] == [Stop, Stop, Start]


@pytest.mark.parametrize("workers", [1, 2, 9])
def test_ties_promote_no_more_than_their_share(workers: int) -> None:
    assert at_rungs(ran(ASHA(9, 9, 1), FITNESSES["constant"], workers)) == [9, 3, 1]


def test_successive_halving_is_the_same_with_any_number_of_workers() -> None:
    def facts(workers: int) -> list[tuple[int, int, str]]:
        done = ran(ASHA(10, 12, 2, 2, quorum=1.0), FITNESSES["few values"], workers)
        return sorted((t.member, t.generation, str(t.params)) for t in done)

    assert facts(1) == facts(3) == facts(10)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ASHA(0, 1, 1), "ASHA(members=0)"),
        (lambda: ASHA(1, 1, 2), "first rung may not lie beyond the last"),
        (lambda: ASHA(1, 0, 1), "ASHA(total_steps=0)"),
        (lambda: ASHA(1, 1, 0), "ASHA(min_steps=0)"),
        (lambda: ASHA(1, 1, 1, quorum=1.5), "ASHA(quorum=1.5)"),
        (lambda: ASHA(1, 2, 1, 1), "ASHA(reduction_factor=1)"),
        (lambda: ASHA(1, 2, 1, fitness=FromSuite("s", "m")), "quorum=1.0"),
    ],
)
def test_settings_that_make_no_sense(make: Callable[[], Any], message: str) -> None:
    with raises(ConfigurationError, *message.split()):
        make()


@pytest.mark.parametrize(
    ("members", "total", "least", "factor", "counts", "enough", "higher"),
    [
        (8, 18, 2, 3, "8 at step 2, 2 at step 6, 0 at step 18", 9, 6),
        (2, 18, 2, 3, "2 at step 2, 0 at step 6", 9, 18),
        (1, 18, 2, 3, "1 at step 2, 0 at step 6", 9, 18),
        (1, 2, 1, 2, "1 at step 1, 0 at step 2", 2, 2),
        (26, 2700, 100, 3, "26 at step 100, 8 at step 300, 2 at step 900, 0 at step 2700", 27, 300),
        rarely(30, 40, 1, 5, "30 at step 1, 6 at step 5, 1 at step 25, 0 at step 40", 125, 2),
    ],
)
def test_members_that_are_too_few_for_the_last_rung_are_refused(
    members: int, total: int, least: int, factor: int, counts: str, enough: int, higher: int
) -> None:
    advice = f"{counts}; use at least {enough} members, or min_steps={higher}"
    with raises(ConfigurationError, f"ASHA(members={members}, ", f"would reach step {total}", advice):
        ASHA(members, total, least, factor)
    for few, step in ((enough - 1, least), (members, higher - 1)):
        with raises(ConfigurationError, "would reach step"):
            ASHA(few, total, step, factor)
    for done in (
        ran(ASHA(enough, total, least, factor), FITNESSES["noisy"]),
        ran(ASHA(members, total, higher, factor), FITNESSES["noisy"]),
    ):
        assert max(trial.end_step for trial in done) == total


def test_a_change_to_more_steps_than_the_members_suffice_for_is_refused() -> None:
    strategy = ASHA(8, 6, 2)
    changes: list[dict[str, Any]] = [
        {"total_steps": 18},
        {"members": 2},
        {"min_steps": 1},
        {"reduction_factor": 2, "total_steps": 18},
    ]
    for change in changes:
        with raises(ConfigurationError, "would reach step"):
            replace(strategy, **change)


def test_fitness_from_a_suite_goes_with_complete_rungs() -> None:
    assert ASHA(3, 2, 1, fitness=FromSuite("s", "m"), quorum=1.0).quorum == 1.0
