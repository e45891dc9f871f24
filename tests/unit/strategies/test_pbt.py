"""Population based training: what each decision is, and the reason that goes with it."""

from dataclasses import replace
from typing import Any

import pytest

from phyla.records import JsonObject, Member
from phyla.strategies import PBT, FromSuite, Measure, Start, Strategy, WinnerTakesAll
from phyla.strategies.exploit import facts
from populations import Listed, context

POPULATION = Listed([1.0, 2.0], [3.0, 4.0])
WORST, BEST = POPULATION.slots
OWN, DONOR = POPULATION.scored_trial(2), POPULATION.scored_trial(4)
LOST: JsonObject = {"rule": "winner-takes-all", "of": 2, "own": facts(OWN)}
WON: JsonObject = {"rule": "winner-takes-all", "of": 2, "own": facts(DONOR), "why": "no member is better"}


def pbt(**given: Any) -> PBT:
    sizes = {"population_size": 2, "steps_per_trial": 5, "total_steps": 20, "quorum": 0.0}
    return PBT(**{**sizes, "exploit": WinnerTakesAll(), "explore": None, "ready_interval": 1, **given})


def decided(strategy: Strategy, member: Member, population: Listed = POPULATION) -> Any:
    return strategy.decide(member, population, context(history=population))


def test_the_loser_takes_over_the_donor_up_to_the_next_line() -> None:
    compared: JsonObject = {**LOST, "donor": facts(DONOR)}
    assert decided(pbt(), WORST) == Start(
        weights=DONOR,
        params={},
        params_from=DONOR.trial,
        steps=3,
        reason={"decision": "exploit", "copied": "both", "compared": compared, "changes": {}},
        exploited=True,
    )


@pytest.mark.parametrize(
    ("strategy", "member", "decision", "compared"),
    [
        (pbt(), BEST, "continue", WON),
        (pbt(burn_in=3), WORST, "continue", {"why": "not ready"}),
        (pbt(ready_interval=3), WORST, "continue", {"why": "not ready"}),
        (pbt(exploit=None), WORST, "explore", {"rule": "none"}),
        (
            pbt(),
            replace(BEST, broken_trial=9),
            "explore",
            {"why": "the same work failed or was stopped before"},
        ),
        (
            pbt(min_scores=3),
            WORST,
            "continue",
            {**LOST, "donor": facts(DONOR), "why": "the donor has 2 of the 3 scores it needs"},
        ),
        (
            pbt(steps_per_trial=1, total_steps=2, ready_interval=None),
            WORST,
            "continue",
            {**LOST, "donor": facts(DONOR), "why": "the donor has trained all its steps"},
        ),
    ],
    ids=["best", "burn-in", "interval", "no exploit", "broken", "few scores", "trained"],
)
def test_who_takes_over_nothing_goes_on_with_its_own(
    strategy: PBT, member: Member, decision: str, compared: JsonObject
) -> None:
    found = decided(strategy, member)
    assert (found.weights, found.params_from) == (member.head, member.head.trial if member.head else None)
    assert found.steps == (3 if strategy.total_steps == 20 else 1)
    assert found.exploited == (decision == "explore")
    assert (found.reason["decision"], found.reason["compared"]) == (decision, compared)
    assert found.reason.get("replaces") == member.broken_trial


def test_older_weights_are_trained_from_their_age_to_the_next_line() -> None:
    population = Listed([1.0, 2.0], [3.0, 4.0])
    donor = replace(DONOR, age=8)
    population.slots[1] = replace(BEST, states=(donor,))
    found = decided(pbt(), WORST, population)
    assert (found.weights, found.steps) == (donor, 2)


@pytest.mark.parametrize("measurements", [1, 2, 3])
def test_a_donor_is_measured_as_often_as_was_asked_for_before_it_is_copied(measurements: int) -> None:
    population = Listed([1.0, 2.0], [3.0, 4.0])
    donor = replace(DONOR, measurements=measurements)
    population.slots[1] = replace(BEST, states=(donor,))
    found = decided(pbt(fitness=FromSuite("s", remeasure=2)), WORST, population)
    compared: JsonObject = {**LOST, "donor": facts(DONOR)}
    if measurements == 3:
        assert (type(found), found.weights) == (Start, donor)
    else:
        reason: JsonObject = {"decision": "measure", "compared": compared}
        assert found == Measure(times=3 - measurements, subject=donor, reason=reason)
