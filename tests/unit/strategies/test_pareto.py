"""Exploit rules for several goals: who moves, to whom, and who never does."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phyla.errors import ConfigurationError
from phyla.records import Constrained, JsonObject, Member, MemberState, Minimize, Objective, Pareto, Scored
from phyla.records import Criteria as JudgedBy
from phyla.strategies import (
    Exploit,
    Exploited,
    ExploitPipeline,
    ParetoTournament,
    ParetoTruncation,
    Truncation,
    describe,
    dominates,
    front_ranks,
)
from populations import context

OBJECTIVE = Constrained(Pareto(Minimize("a"), Minimize("b")), ["c <= 0"])
Vector = Sequence[float] | None
RULES: dict[str, Exploit] = {
    "truncation": ParetoTruncation(0.5),
    "tournament": ParetoTournament(),
    "dominating": ParetoTournament(crowded=False),
    "pipeline": ExploitPipeline([ParetoTruncation(), ParetoTournament()]),
}


class Judged:
    """Members with the given metrics a, b and c; None is a member without a score."""

    def __init__(self, *vectors: Vector, objective: Objective = OBJECTIVE) -> None:
        self.slots = [self._member(index, vector, objective) for index, vector in enumerate(vectors)]

    @staticmethod
    def _member(index: int, vector: Vector, objective: Objective) -> Member:
        published = None
        if vector is not None:
            values = dict(zip("abc", [*vector, 0.0][:3], strict=True))
            found = objective.judge(values)
            published = Scored(
                trial=index + 1,
                member=index,
                checkpoint=f"{index + 1}.1",
                index=0,
                step=1,
                params={},
                fitness=found.fitness,
                order=found.order,
                criteria=JudgedBy(values=values, orders=found.orders, infeasible=found.infeasible),
            )
        states = () if published is None else (published,)
        return Member(study=1, index=index, state=MemberState.READY, head=published, states=states)

    def choose(self, rule: Exploit, member: int, seed: int = 0) -> Exploited:
        return rule.choose(self.slots[member], self.slots, context(seed))


def orders(member: Member) -> tuple[float, ...]:
    assert member.published is not None
    assert member.published.criteria is not None
    return member.published.criteria.orders


NUMBER = st.integers(0, 4).map(float) | st.sampled_from([math.nan, math.inf, 2.5])
VECTOR = st.none() | st.tuples(NUMBER, NUMBER, st.sampled_from([0.0, 0.0, 1.0]))


@pytest.mark.parametrize("name", RULES)
@given(vectors=st.lists(VECTOR, min_size=1, max_size=14), seed=st.integers(0, 99))
def test_donors_are_feasible_and_strictly_better(name: str, vectors: list[Vector], seed: int) -> None:
    population = Judged(*vectors)
    fit = [member for member in population.slots if member.published and member.published.can_donate]
    fronts: Sequence[int] = front_ranks(np.asarray([orders(one) for one in fit])).tolist() if fit else []
    front = {member.index: int(rank) for member, rank in zip(fit, fronts, strict=True)}
    for member in population.slots:
        choice = population.choose(RULES[name], member.index, seed)
        assert describe({"decision": "exploit" if choice.donor else "continue", "compared": choice.reason})
        if choice.donor is None:
            continue
        assert member.published is not None
        assert choice.donor.member in front
        if member.index not in front:
            continue
        donor, own = population.slots[choice.donor.member], member
        assert orders(donor) != orders(own)
        assert not dominates(orders(own), orders(donor))
        assert front[donor.index] <= front[own.index]
        if name == "dominating":
            assert dominates(orders(donor), orders(own))


def test_the_bottom_copies_the_front() -> None:
    population = Judged((0, 4), (1, 1), (4, 0), (3, 3), (5, 5), (6, 6), (7, 7), (8, 8))
    for seed in range(20):
        choice = population.choose(ParetoTruncation(0.25), 7, seed)
        assert choice.donor is not None
        assert choice.donor.member in (0, 2)  # the ends of the front are the least crowded
        assert choice.reason["own"]["front"] == 5  # type: ignore[index,call-overload]
    assert population.choose(ParetoTruncation(0.25), 3).reason["why"] == "not in the bottom"
    assert population.choose(ParetoTruncation(0.25), 1).donor is None


def test_where_all_are_on_one_front_the_crowded_make_room() -> None:
    population = Judged((0, 10), (5, 5), (5.1, 4.9), (5.2, 4.8), (10, 0))
    assert population.choose(ParetoTruncation(0.2), 0).donor is None
    choice = population.choose(ParetoTruncation(0.2), 2)
    assert choice.donor is not None
    assert choice.donor.member in (0, 4)
    end = "0 (a 0, b 10" if choice.donor.member == 0 else "4 (a 10, b 0"
    told: JsonObject = {"decision": "exploit", "compared": choice.reason}
    assert describe(told) == f"took over member {end} against a 5.1, b 4.9)"


def test_ties_do_not_move() -> None:
    for rule in RULES.values():
        for vectors in ([(1, 1)] * 6, [(1, 1, 1)] * 6, [(math.nan, 1)] * 6):
            population = Judged(*vectors)
            assert all(
                population.choose(rule, member, seed).donor is None for member in range(6) for seed in range(5)
            )


def test_what_is_infeasible_takes_over_what_is_feasible_even_with_the_same_goals() -> None:
    population = Judged((1, 1, 5), (1, 1, 0))
    for rule in RULES.values():
        choice = population.choose(rule, 0)
        assert choice.donor is not None
        assert choice.donor.member == 1
        assert population.choose(rule, 1).donor is None
    told: JsonObject = {"decision": "exploit", "compared": population.choose(RULES["tournament"], 0).reason}
    assert describe(told).endswith("against infeasible)")


def test_members_without_scores() -> None:
    for rule in RULES.values():
        assert Judged(None, (1, 1)).choose(rule, 0).donor is None
        assert Judged((1, 1)).choose(rule, 0).donor is None
        assert Judged((1, 1), None).choose(rule, 0).donor is None


def test_crowding_decides_a_tournament_only_where_it_may() -> None:
    population = Judged((5, 5), (0, 10), (5.1, 4.9), (10, 0), (5.2, 4.8))
    moved = {seed: population.choose(ParetoTournament(), 0, seed).donor for seed in range(30)}
    assert {donor.member for donor in moved.values() if donor} == {1, 3}
    assert not any(population.choose(ParetoTournament(crowded=False), 0, seed).donor for seed in range(30))


def test_where_one_number_decides_it_is_plain_truncation() -> None:
    objective = Constrained(Minimize("a"), ["c <= 0"])
    population = Judged((1, 0), (2, 0), (3, 0), (4, 0), (0, 0, 9), objective=objective)
    moves = [population.choose(ParetoTruncation(0.4), member) for member in range(5)]
    assert [move.donor is not None for move in moves] == [False, False, False, True, True]
    assert all(move.donor.member in (0, 1) for move in moves if move.donor)


def test_settings() -> None:
    for quantile in (0, 0.6, -1):
        with pytest.raises(ConfigurationError, match=r"must be a number in \(0, 0.5\]"):
            ParetoTruncation(quantile)
    assert ExploitPipeline([ParetoTruncation()]).pareto
    assert not ExploitPipeline([ParetoTruncation(), Truncation()]).pareto
