"""Who may donate in PBT: no lucky newcomers."""

from dataclasses import replace
from typing import Any

import pytest

from facts import raises
from phyla.errors import ConfigurationError
from phyla.space import Float, Space
from phyla.strategies import PBT, Start, Truncation
from populations import Listed, context

SPACE = Space(lr=Float(0.1, 1.0))


def pbt(**settings: Any) -> PBT:
    sizes: dict[str, Any] = {"population_size": 4, "steps_per_trial": 1, "total_steps": 100}
    return PBT(**{**sizes, "exploit": Truncation(0.25), **settings})


def decided(strategy: PBT, population: Listed, index: int = 0, seed: int = 0) -> Start:
    decision = strategy.decide(
        population.member(index), population, context(seed, space=SPACE, history=population)
    )
    assert isinstance(decision, Start)
    return decision


def with_params(population: Listed) -> Listed:
    population.trials = {key: replace(trial, params={"lr": 0.5}) for key, trial in population.trials.items()}
    population.slots = [
        replace(slot, head=published, states=(published,) if published else ())
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


@pytest.mark.parametrize("value", [0, 2.5, True])
def test_settings_that_make_no_sense(value: Any) -> None:
    with raises(ConfigurationError, f"PBT(min_scores={value})"):
        pbt(min_scores=value)
