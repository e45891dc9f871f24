"""Ranks at equal progress, found by counting, are those of placing every member."""

import math
from bisect import bisect_right
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phyla.population import (
    Backtrack,
    BinaryTournament,
    Exploit,
    ExploitPipeline,
    Population,
    Truncation,
    TTest,
    WinnerTakesAll,
)
from phyla.population.equal_progress import EqualProgress
from phyla.records import Member, Scored
from populations import Listed, context

RULES: tuple[Exploit, ...] = (
    Truncation(0.2),
    Truncation(0.5),
    WinnerTakesAll(),
    BinaryTournament(),
    TTest(window=2, alpha=0.5),
    Backtrack(quantile=0.5, pool=0.4),
    ExploitPipeline([Truncation(0.3), BinaryTournament()]),
)
ORDERS = st.one_of(st.integers(0, 4).map(float), st.floats(-9, 9), st.just(math.nan))


class EveryMember:
    """The plain way: the key of each member, from all the scores of its age, then sorted."""

    def __init__(self, population: Population, steps_per_trial: int) -> None:
        self.population = population
        self.steps = steps_per_trial

    def key(self, scored: Scored) -> float | None:
        """Return the share of scores of equally old weights that are not better, the score itself counted half."""
        order = scored.order
        if order is None or order == -math.inf:
            return order
        generation = max(0, math.ceil(scored.step / self.steps) - 1)
        orders = sorted(self.population.orders(generation, 0, 1000))
        at = bisect_right(orders, order)
        among = len(orders) + (order not in orders)
        return 1 - (len(orders) - at + 0.5) / among

    def standings(self) -> list[int]:
        """Return the members that have a score, best first."""
        keys = {}
        for member in self.population.members():
            published = member.published
            if published is not None and published.order is not None:
                keys[member.index] = (self.key(published) or 0.0, published.order, member.index)
        return sorted(keys, key=lambda index: keys[index], reverse=True)

    def elites(self) -> list[Scored]:
        """Return the elites, best first."""
        elites = [self.population.elite_at_rank(rank) for rank in range(self.population.elites())]
        return sorted(elites, key=lambda one: (self.key(one) or 0.0, one.member), reverse=True)


class Placed:
    """As it is, but for ranks, which are found the plain way."""

    def __init__(self, population: Population, steps_per_trial: int) -> None:
        self._fair = EqualProgress(population, steps_per_trial)
        self._plain = EveryMember(population, steps_per_trial)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fair, name)

    def rank(self, member: Member) -> int:
        """Return how many members stand better."""
        return self._plain.standings().index(member.index)

    def at_rank(self, rank: int) -> Member:
        """Return the member at a rank."""
        return self._fair.member(self._plain.standings()[rank])


@st.composite
def populations(draw: st.DrawFn) -> tuple[Listed, int]:
    """Draw members that are differently far, some on weights of others, some measured again, some not at all."""
    steps = draw(st.integers(1, 3))
    regular = draw(st.booleans())
    population = Listed(*draw(st.lists(st.lists(ORDERS, max_size=4), min_size=2, max_size=9)))
    for trial in population.trials.values():
        end = (trial.generation + 1) * steps - (0 if regular else draw(st.integers(0, steps - 1)))
        population.trials[trial.id] = replace(trial, end_step=end, reached_step=end)
    for slot in population.slots:
        if slot.published is None:
            continue
        own = population.scored_trial(slot.published.trial)
        if draw(st.integers(0, 3)) == 0:
            again = draw(st.one_of(st.none(), ORDERS))
            own = replace(own, fitness=again, order=None if again is None else population.objective.order(again))
        if draw(st.integers(0, 3)) == 0:
            own = replace(own, step=draw(st.integers(0, 6 * steps)))
        population.slots[slot.index] = replace(slot, head=own, published=own)
    return population, steps


@settings(max_examples=400, deadline=None)
@given(drawn=populations(), data=st.data())
def test_counting_gives_the_ranks_of_placing_every_member(drawn: tuple[Listed, int], data: st.DataObject) -> None:
    population, steps = drawn
    plain = EveryMember(population, steps)
    standings = plain.standings()
    for rank, index in enumerate(standings):
        fair = EqualProgress(population, steps)
        assert fair.scored() == len(standings)
        shown = fair.shown(population.member(index))
        assert shown.published is not None
        assert fair.real(shown.published) == population.member(index).published
        assert shown.published.order == plain.key(population.slots[index].published)  # type: ignore[arg-type]
        assert fair.rank(shown) == rank
        assert fair.at_rank(rank) == shown
    fair = EqualProgress(population, steps)
    for rank in data.draw(st.permutations(range(len(standings)))):
        # What was found before narrows the search.
        assert fair.at_rank(rank) == fair.shown(population.member(standings[rank]))
    fair = EqualProgress(population, steps)
    elites = [fair.elite_at_rank(rank) for rank in range(fair.elites())]
    assert [fair.real(elite) for elite in elites] == plain.elites()
    assert [elite.order for elite in elites] == [plain.key(elite) for elite in plain.elites()]
    with pytest.raises(IndexError):
        EqualProgress(population, steps).at_rank(len(standings))


@settings(max_examples=200, deadline=None)
@given(drawn=populations(), seed=st.integers(0, 99))
def test_every_rule_decides_as_it_does_when_every_member_is_placed(drawn: tuple[Listed, int], seed: int) -> None:
    population, steps = drawn
    for rule in RULES:
        for member in population.members():
            if member.head is None:
                continue
            choices = [
                rule.choose(fair.shown(member), fair, context(seed))
                for fair in (EqualProgress(population, steps), Placed(population, steps))
            ]
            assert choices[0] == choices[1]
