"""Fronts and crowding distances, against a brute force and by hand."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phyla.records import Criteria, JobState, TrialRecord
from phyla.strategies import crowding, dominates, front_of, front_ranks, thinned

NUMBERS = st.integers(-4, 4).map(float) | st.floats(allow_nan=False, allow_infinity=False)


@st.composite
def vectors(draw: st.DrawFn, most: int = 40) -> np.ndarray:
    goals = draw(st.integers(2, 4))
    rows = draw(st.lists(st.lists(NUMBERS, min_size=goals, max_size=goals), min_size=1, max_size=most))
    return np.asarray(rows)


def peeled(rows: np.ndarray) -> list[int]:
    """The definition: front 0 is what none dominates; it is taken away, and so on."""
    ranks = [-1] * len(rows)
    rank = 0
    while -1 in ranks:
        left = [index for index, known in enumerate(ranks) if known == -1]
        front = [one for one in left if not any(dominates(rows[other], rows[one]) for other in left)]
        for index in front:
            ranks[index] = rank
        rank += 1
    return ranks


@given(vectors())
def test_fronts_are_those_of_the_definition(rows: np.ndarray) -> None:
    assert front_ranks(rows).tolist() == peeled(rows)


@given(vectors(), st.randoms(use_true_random=False))
def test_fronts_and_crowding_do_not_depend_on_the_order(rows: np.ndarray, random: object) -> None:
    mixed = np.random.default_rng(random.getrandbits(32)).permutation(len(rows))  # type: ignore[attr-defined]
    assert front_ranks(rows[mixed]).tolist() == front_ranks(rows)[mixed].tolist()
    distinct = np.unique(rows, axis=0)
    shuffled = np.random.default_rng(1).permutation(len(distinct))
    assert crowding(distinct[shuffled]).tolist() == pytest.approx(crowding(distinct)[shuffled].tolist())


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [((1, 1), (0, 0), True), ((1, 0), (0, 0), True), ((0, 0), (0, 0), False), ((1, -1), (0, 0), False)],
)
def test_dominance(one: tuple[float, ...], other: tuple[float, ...], expected: bool) -> None:
    assert dominates(one, other) is expected


def test_crowding_by_hand() -> None:
    # Deb et al. 2002, section III-B: per goal the distance of the neighbours over the range, added up.
    front = np.asarray([[0.0, 10.0], [1.0, 6.0], [3.0, 5.0], [4.0, 0.0]])
    assert crowding(front).tolist() == [math.inf, 3 / 4 + 5 / 10, 3 / 4 + 6 / 10, math.inf]
    assert crowding(np.asarray([[1.0, 2.0]])).tolist() == [math.inf]
    assert crowding(np.asarray([[1.0, 2.0], [2.0, 1.0]])).tolist() == [math.inf, math.inf]


def test_of_equal_vectors_only_the_first_has_room() -> None:
    front = np.asarray([[0.0, 2.0], [1.0, 1.0], [1.0, 1.0], [2.0, 0.0], [2.0, 0.0]])
    assert crowding(front).tolist() == [math.inf, 2.0, 0.0, math.inf, 0.0]


def test_a_goal_that_does_not_vary_adds_nothing() -> None:
    front = np.asarray([[0.0, 5.0, 2.0], [1.0, 5.0, 1.0], [4.0, 5.0, 0.0]])
    inner = crowding(front)[1]
    assert inner == 2.0 or math.isinf(inner)  # it may be at an end of the goal that does not vary


@given(vectors(), st.integers(1, 40))
def test_thinning_keeps_so_many_and_the_ends(rows: np.ndarray, limit: int) -> None:
    front = np.unique(rows, axis=0)
    front = front[front_ranks(front) == 0]
    kept = thinned(front, limit)
    assert len(kept) == len(set(kept)) == min(limit, len(front))
    if limit >= 2 * front.shape[1]:
        best = front[kept].max(axis=0)
        assert best.tolist() == front.max(axis=0).tolist()


def test_thinning_takes_from_the_crowd() -> None:
    dense = np.linspace(0.4, 0.5, 40)
    first = np.sort(np.concatenate([np.linspace(0, 1, 11), dense]))
    front = np.stack([first, 1 - first], axis=1)
    kept = front[thinned(front, 12), 0]
    assert np.diff(kept).max() < 0.25
    assert {0.0, 1.0} <= set(kept)
    assert np.count_nonzero((kept >= 0.4) & (kept <= 0.5)) <= 5


def trial(number: int, *orders: float, infeasible: str | None = None) -> TrialRecord:
    fit = infeasible is None and all(map(math.isfinite, orders))
    return TrialRecord(
        id=number,
        study=1,
        member=0,
        generation=0,
        state=JobState.COMPLETED,
        params={},
        start_step=0,
        end_step=1,
        seed=0,
        fitness=orders[0],
        order=orders[0] if fit else -math.inf,
        criteria=Criteria(orders=orders, infeasible=infeasible),
        created_at=0.0,
    )


def test_the_front_of_trials() -> None:
    trials = [
        trial(6, 2.0, 2.0),
        trial(1, 1.0, 3.0),
        trial(2, 2.0, 2.0),
        trial(3, 1.0, 1.0),
        trial(4, 9.0, 9.0, infeasible="x 1 > 0"),
        trial(5, math.nan, 9.0),
        trial(7, 0.0, -math.inf),
    ]
    assert [one.id for one in front_of(trials)] == [2, 1]
    assert front_of(trials[4:6]) == []
