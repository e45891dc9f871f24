"""Exploit rules that compare a member with one other, or with the best."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from phyla.errors import ConfigurationError
from phyla.records import Minimize
from phyla.strategies import BinaryTournament, Exploited, TTest, WinnerTakesAll, describe
from populations import Listed, context

A = [10.0, 12, 9, 11, 10, 13, 12, 11, 10, 12]
RNG = np.random.default_rng


def outcome(own: Sequence[float], other: Sequence[float], **settings: Any) -> Exploited:
    population = Listed(own, other)
    return TTest(**settings).choose(population.member(0), population, context(history=population))


@pytest.mark.parametrize(
    ("other", "p", "copies"),
    [
        ([a + 2 for a in A], 0.00211, True),
        ([11, 10, 13, 9, 12, 14, 11, 10, 12, 13], 0.443, False),
        ([11, 30, -5, 22, 9, 40, 13, 2, 25, 18], 0.227, False),
        ([a - 2 for a in A], 0.00211, False),
    ],
)
def test_published_vectors_of_welchs_test(other: Sequence[float], p: float, copies: bool) -> None:
    choice = outcome(A, other)
    assert choice.reason["p"] == pytest.approx(p, rel=5e-3)
    assert (choice.donor is not None) == copies


def test_welch_agrees_with_scipy() -> None:
    rng = RNG(1)
    for _ in range(50):
        own, other = rng.normal(0, 1, rng.integers(2, 11)), rng.normal(1, 3, rng.integers(2, 11))
        p = outcome([*map(float, own)], [*map(float, other)]).reason["p"]
        assert p == pytest.approx(stats.ttest_ind(own, other, equal_var=False).pvalue, rel=1e-9)


def test_constant_scores_decide_by_themselves() -> None:
    assert outcome([5.0] * 10, [5.0] * 10).donor is None
    six = outcome([5.0] * 10, [6.0] * 10)
    assert six.donor is not None
    assert six.reason["p"] == 0.0
    assert outcome([6.0] * 10, [5.0] * 10).donor is None


def test_scores_that_are_no_finite_numbers() -> None:
    assert outcome(A, [*A, math.nan]).donor is None
    assert outcome([*A, math.nan], [math.nan, math.inf]).donor is None
    lost = outcome([*A, math.nan], [3.0])
    assert lost.donor is not None
    assert lost.reason["why"] == "its own score is no finite number"
    assert outcome([math.nan, *A[1:]], [a + 2 for a in A]).reason["own_scores"] == 9


def test_few_scores_keep() -> None:
    for own, other in (([], A), (A, []), ([1.0], A), (A, [99.0])):
        assert outcome(own, other).donor is None
    population = Listed(A)
    assert TTest().choose(population.member(0), population, context(history=population)).donor is None


def test_only_the_window_and_only_ones_own_training_of_the_weights_counts() -> None:
    assert outcome([0.0, 9.0, 9.0, 9.0], [9.0, 9.0, 9.0], window=3).donor is None
    assert outcome([0.0] * 5, [9.0] * 5, window=3).reason["own_scores"] == 3
    population = Listed([0.0] * 5, [9.0] * 5)
    taken = population.add(0, 5, 9.5, parent=10, jump=5)
    jumped = replace(population.member(0), states=(population.scored_trial(taken),))
    assert TTest().choose(jumped, population, context(history=population)).reason["own_scores"] == 1


def test_less_is_better_when_minimising() -> None:
    population = Listed(A, [a - 2 for a in A], objective=Minimize("loss"))
    choice = TTest().choose(population.member(0), population, context(history=population))
    assert choice.donor is not None
    assert choice.donor.member == 1
    line = describe({"decision": "exploit", "copied": "both", "compared": choice.reason})
    assert line == "took over member 1 (10 against 12, p 0.002113)"


@pytest.mark.parametrize(("name", "value"), [("window", 1), ("window", 2.5), ("alpha", 0.0), ("alpha", 1.0)])
def test_numbers_that_make_no_sense(name: str, value: float) -> None:
    with pytest.raises(ConfigurationError, match=rf"TTest\({name}={value}"):
        TTest(**{name: value})  # type: ignore[arg-type]  # a wrong value on purpose


def test_a_binary_tournament_copies_whoever_is_strictly_better_and_draws_uniformly() -> None:
    population = Listed([1.0], [2.0], [1.0], [0.0], [], [math.nan])
    rng = RNG(0)
    drawn: Counter[int | None] = Counter()
    for _ in range(2000):
        donor = BinaryTournament().choose(population.member(0), population, context(rng, history=population)).donor
        drawn[donor.member if donor else None] += 1
    assert set(drawn) == {1, None}
    assert drawn[1] == pytest.approx(400, abs=60)
    lost = Counter(
        choice.donor.member
        for choice in (
            BinaryTournament().choose(population.member(5), population, context(rng, history=population))
            for _ in range(2000)
        )
        if choice.donor
    )
    assert set(lost) == {0, 1, 2, 3}
    assert min(lost.values()) > 320
    for index in (4, 1):
        assert (
            BinaryTournament().choose(population.member(index), population, context(rng, history=population)).donor
            is None
        )
    alone = Listed([1.0])
    assert BinaryTournament().choose(alone.member(0), alone, context(rng)).donor is None


def test_the_winner_takes_all() -> None:
    population = Listed([1.0], [3.0], [3.0], [math.nan], [])
    donors = [
        WinnerTakesAll().choose(member, population, context(history=population)).donor
        for member in population.slots
    ]
    assert [donor.member if donor else None for donor in donors] == [2, None, None, 2, None]
    hopeless = Listed([math.nan], [math.nan])
    assert WinnerTakesAll().choose(hopeless.member(0), hopeless, context()).donor is None
