"""Who may donate in PBT: no lucky newcomers, and no members that are only ahead."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from phyla.errors import ConfigurationError
from phyla.machine import Rules
from phyla.population import PBT, BinaryTournament, ParetoTruncation, Start, Truncation, TTest, WinnerTakesAll
from phyla.population.equal_progress import EqualProgress
from phyla.records import Maximize, TrialRecord, TrialState
from phyla.space import Float, Space
from populations import Listed, context
from simulation import Simulation

SPACE = Space(lr=Float(0.1, 1.0))


def pbt(**settings: Any) -> PBT:
    sizes: dict[str, Any] = {"population_size": 4, "steps_per_trial": 1, "total_steps": 100}
    return PBT(**{**sizes, "exploit": Truncation(0.25), **settings})


def decided(strategy: PBT, population: Listed, index: int = 0, seed: int = 0) -> Start:
    decision = strategy.decide(population.member(index), population, context(seed, space=SPACE))
    assert isinstance(decision, Start)
    return decision


def with_params(population: Listed) -> Listed:
    population.trials = {key: replace(trial, params={"lr": 0.5}) for key, trial in population.trials.items()}
    population.slots = [
        replace(slot, head=published, published=published)
        for slot in population.slots
        for published in [population.scored_trial(slot.published.trial) if slot.published else None]
    ]
    return population


def donor(start: Start) -> int | None:
    compared: Any = start.reason["compared"]
    return compared["donor"]["member"] if start.reason["decision"] == "exploit" else None


def test_a_member_donates_only_after_some_scores_of_its_own_line() -> None:
    population = with_params(Listed([1.0, 1.0, 1.0], [2.0, 2.0, 2.0], [3.0, 3.0, 3.0], [4.0, 5.0, 9.0]))
    assert donor(decided(pbt(min_scores=3), population)) == 3
    too_few = decided(pbt(min_scores=4), population)
    assert (donor(too_few), too_few.reason["compared"]["why"]) == (  # type: ignore[call-overload,index]
        None,
        "the donor has 3 of the 4 scores it needs",
    )
    # The lucky one took its weights over just before: it has one score of its own.
    lucky = population.slots[3].published
    assert lucky is not None
    population.trials[lucky.trial] = replace(population.trials[lucky.trial], jump_from=lucky.trial - 1, parent=6)
    assert donor(decided(pbt(min_scores=1), population)) == 3
    assert donor(decided(pbt(min_scores=2), population)) is None
    # With more in the top, somebody else is drawn.
    wider = pbt(min_scores=2, exploit=Truncation(0.5))
    assert {donor(decided(wider, population, seed=seed)) for seed in range(20)} == {2}


def test_scores_that_never_came_do_not_count() -> None:
    population = with_params(Listed([1.0, 1.0], [2.0, 2.0], [3.0, 3.0], [9.0, 9.0]))
    last = population.slots[3].published
    assert last is not None
    population.trials[last.trial - 1] = replace(population.trials[last.trial - 1], order=None)
    assert donor(decided(pbt(min_scores=2), population)) is None


def fast_and_slow() -> Listed:
    """Member 3 is mediocre and far ahead; member 2 is slow and the best at every age; 0 is bad, 1 worse."""
    slow = [10.0 + i for i in range(3)]
    return with_params(
        Listed([1.0 + i for i in range(3)], [0.5 + i for i in range(3)], slow, [2.0 + i for i in range(30)])
    )


@pytest.mark.parametrize("exploit", [Truncation(0.25), WinnerTakesAll(), BinaryTournament()], ids=repr)
def test_who_is_only_ahead_is_no_donor_at_equal_progress(exploit: Any) -> None:
    population = fast_and_slow()

    def donors(compare: str) -> set[int | None]:
        strategy = pbt(exploit=exploit, compare=compare)
        return {donor(decided(strategy, population, 1, seed)) for seed in range(20)} - {None}

    assert 3 in donors("latest")
    assert 2 in donors("equal progress")
    if not isinstance(exploit, BinaryTournament):
        assert (donors("latest"), donors("equal progress")) == ({3}, {2})


def test_standings_are_shares_of_equally_old_scores() -> None:
    population = fast_and_slow()
    fair = EqualProgress(population, 1)
    keys = [fair.member(index).published for index in range(4)]
    assert [key.order if key else None for key in keys] == [0.375, 0.125, 0.875, 0.5]
    assert [fair.at_rank(rank).index for rank in range(4)] == [2, 3, 0, 1]
    assert [fair.rank(fair.member(index)) for index in (2, 3, 0, 1)] == [0, 1, 2, 3]
    assert fair.real(keys[2] or keys[0]) == population.member(2).published  # type: ignore[arg-type]
    assert fair.elite_at_rank(0).member == 2


def test_who_took_over_old_weights_is_compared_with_old_weights() -> None:
    population = fast_and_slow()
    fast = population.slots[3].published
    assert fast is not None
    jumped = population.add(1, 3, 40.0, fast.trial, jump=6, params={"lr": 0.5})
    population.trials[jumped] = replace(population.trials[jumped], start_step=30, end_step=31, reached_step=31)
    own = population.scored_trial(jumped)
    population.slots[1] = replace(population.slots[1], head=own, published=own)
    shown = EqualProgress(population, 1).member(1).published
    assert shown is not None
    assert shown.order == 0.5


def test_who_stands_better_but_scores_lower_does_not_donate() -> None:
    # Member 0 is far ahead; at age 2 its score is the worst of all, now it is the highest.
    population = with_params(Listed([0.0, 1.0, 50.0], [5.0, 6.0], [4.0, 5.0], [3.0, 4.0]))
    population.trials[population.add(0, 2, 60.0, None)] = population.trials[3]
    for index in range(3):
        extra = population.add(1, 2, 60.0 + index, None)
        population.trials[extra] = replace(population.trials[extra], params={"lr": 0.5})
    compared: Any = decided(pbt(compare="equal progress"), population).reason["compared"]
    assert compared["why"] == "who stands better at equal progress does not score higher"


def test_nan_is_worst_and_a_rule_over_several_scores_sees_standings() -> None:
    population = with_params(Listed([math.nan, math.nan], [1.0, 1.1], [5.0, 5.2], [6.0, 6.1]))
    assert donor(decided(pbt(compare="equal progress"), population)) == 3
    tested = decided(pbt(compare="equal progress", exploit=TTest(window=2, alpha=0.9)), population, 1)
    assert tested.reason["compared"]["rule"] == "t-test"  # type: ignore[call-overload,index]


def test_synchronous_studies_choose_alike_either_way() -> None:
    def rows(compare: Any) -> list[tuple[object, ...]]:
        strategy = PBT(
            population_size=8,
            steps_per_trial=5,
            total_steps=40,
            exploit=Truncation(0.25),
            copy="hyperparameters",
            quorum=1.0,
            compare=compare,
        )
        rules = Rules(space=SPACE, objective=Maximize("Q"), strategy=strategy)

        def train(parent: object, trial: TrialRecord) -> tuple[object, float]:
            return None, float(np.random.default_rng(trial.seed).normal())

        simulation = Simulation(rules, train)
        simulation.run(3, np.random.default_rng(0))
        with simulation.store.reader(simulation.study.id) as reader:
            done = [trial for trial in reader.trials() if trial.state is TrialState.COMPLETED]
        return sorted((t.member, t.generation, str(t.params), str(t.reason["decision"])) for t in done)

    assert rows("latest") == rows("equal progress")


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"min_scores": 0}, r"PBT\(min_scores=0\)"), ({"compare": "fair"}, "choose 'latest' or 'equal progress'")],
)
def test_settings_that_make_no_sense(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        pbt(**settings)


def test_a_front_is_no_standing() -> None:
    with pytest.raises(ConfigurationError, match="a front has none; use compare='latest'"):
        PBT(
            population_size=4,
            steps_per_trial=1,
            total_steps=4,
            exploit=ParetoTruncation(),
            compare="equal progress",
        )
