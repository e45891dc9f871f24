"""The rule that ends a study which no longer improves."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

import phyla
from effort import times
from facts import raises
from phyla.errors import ConfigurationError
from phyla.records import Member, MemberState
from phyla.strategies import Plateau

STEPS = 10
MEMBERS = 8


class Rounds:
    """Results of each round, by member."""

    def __init__(self, rounds: Sequence[Sequence[float]]) -> None:
        self.rounds = rounds

    def results(self, generation: int) -> Mapping[int, float]:
        return dict(enumerate(self.rounds[generation]))


def said(rule: Plateau, rounds: Sequence[Sequence[float]], members: Sequence[Member] | None = None) -> str | None:
    """Return what the rule says after these rounds."""
    members = members or [member(index, len(rounds)) for index in range(len(rounds[0]))]
    return rule.ends(members, phyla.Maximize("score"), Rounds(rounds))  # type: ignore[arg-type]


def member(index: int, rounds: int, **more: Any) -> Member:
    return Member(
        study=1, index=index, state=MemberState.READY, generation=rounds, progress=rounds * STEPS, **more
    )


def ended(rule: Plateau, course: Callable[[int], float], noise: float, seed: int, most: int = 200) -> int:
    """Return after how many rounds a study ends whose members all have a true score, measured with noise."""
    rng = np.random.default_rng(seed)
    rounds = [[course(at) + noise * rng.normal() for _ in range(MEMBERS)] for at in range(most)]
    return next((count for count in range(1, most) if said(rule, rounds[:count])), most)


@pytest.mark.parametrize("noise", [0.0, 0.1, 1.0, 10.0])
def test_equal_scores_end_a_study_however_noisy_they_are(noise: float) -> None:
    """The best so far goes on to rise by luck; it does not keep the study alive."""
    rounds = [ended(Plateau(steps=20 * STEPS), lambda at: 1.0, noise, seed) for seed in range(times(10, 20))]
    assert min(rounds) >= 20  # never before as many steps as were asked for
    assert np.median(rounds) <= 25
    assert max(rounds) <= 60


@pytest.mark.parametrize("noise", [0.0, 0.1, 0.5])
def test_a_study_that_improves_goes_on_however_lucky_a_score_was(noise: float) -> None:
    lucky = Plateau(steps=20 * STEPS)
    rounds = [ended(lucky, lambda at: 0.05 * at + 3.0 * (at == 25), noise, seed) for seed in range(times(3, 10))]
    assert rounds == [200] * len(rounds)


@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_it_ends_soon_after_the_improvement(noise: float) -> None:
    rounds = [
        ended(Plateau(steps=20 * STEPS), lambda at: min(at, 60) / 60, noise, seed) for seed in range(times(3, 10))
    ]
    assert min(rounds) >= 60
    assert max(rounds) <= 120


def test_changes_that_do_not_count() -> None:
    rounds = [[1.0 - 0.5**at] for at in range(40)]
    assert said(Plateau(steps=4 * STEPS), rounds) is None  # each is better than the one before
    gone = "the best score has not improved for 40 steps"
    assert said(Plateau(steps=4 * STEPS, min_change=1e-3), rounds) == gone
    assert said(Plateau(steps=4 * STEPS, min_change=1e-3), rounds[:8]) is None


def test_scores_that_are_no_numbers_are_no_improvement() -> None:
    assert said(Plateau(steps=4 * STEPS), [[float("-inf")]] * 4)
    assert said(Plateau(steps=4 * STEPS), [[float("-inf")]] * 3 + [[1.0]]) is None


def test_members_that_lag_are_not_waited_for() -> None:
    rounds = [[1.0] * MEMBERS] * 8
    rule = Plateau(steps=8 * STEPS)
    slow = [member(0, 1), member(1, 2), *(member(index, 8) for index in range(2, 8))]
    assert said(rule, rounds, slow)
    assert said(rule, rounds, [member(index, 1 if index < 3 else 8) for index in range(8)]) is None
    late = [*slow[2:], member(8, 9, joined_generation=5, joined_steps=50)]
    assert said(rule, rounds, late)
    assert said(rule, rounds, [member(index, 0) for index in range(8)]) is None
    assert said(rule, rounds, [Member(study=1, index=0, state=MemberState.DONE, retired=True)]) is None


def test_many_short_trials_are_looked_at_evenly() -> None:
    calls: list[int] = []

    class Counted(Rounds):
        def results(self, generation: int) -> Mapping[int, float]:
            calls.append(generation)
            return super().results(generation)

    history = Counted([[0.0]] * 1000)
    rule = Plateau(steps=500 * STEPS)
    assert rule.ends([member(0, 1000)], phyla.Maximize("score"), history)  # type: ignore[arg-type]
    assert len(calls) == 20
    assert (calls[0], calls[-1]) == (500, 999)


@pytest.mark.parametrize(
    ("strategy", "why"),
    [
        (phyla.PBT(population_size=2, steps_per_trial=30, total_steps=900), "steps=120"),
        (phyla.RandomSearch(members=2, total_steps=900), "steps_per_trial="),
        (phyla.ASHA(members=27, min_steps=10, total_steps=100), "Plateau(steps=100) ASHA"),
    ],
)
def test_it_refuses_strategies_without_enough_trials(strategy: phyla.strategies.Strategy, why: str) -> None:
    def train(trial: phyla.Trial) -> None:
        raise AssertionError

    with raises(ConfigurationError, *why.split()):
        phyla.Study(
            "s", {"x": phyla.Float(0, 1)}, phyla.Maximize("m"), strategy, train, stopping=Plateau(steps=100)
        )


@pytest.mark.parametrize("settings", [{"steps": 0}, {"steps": 1.5}, {"steps": 9, "min_change": -1.0}])
def test_settings_that_make_no_sense_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError, match="Plateau"):
        Plateau(**settings)  # type: ignore[arg-type]
