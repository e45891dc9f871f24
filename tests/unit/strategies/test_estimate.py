"""How good checkpoints are by a model of noisy scores."""

import math
from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt
import pytest

from effort import rarely
from phyla.records import Maximize, Minimize
from phyla.strategies.estimate import Estimates, estimate

MEMBERS, GENERATIONS = 16, 20
HEADS = range(MEMBERS * (GENERATIONS - 1), MEMBERS * GENERATIONS)
SEEDS = range(20)

Array = npt.NDArray[np.float64]
Parents = Sequence[int | None]


def planted(
    seed: int, *, noise: float, change: float = 0.3, members: int = MEMBERS, generations: int = GENERATIONS
) -> tuple[Array, Array, Parents]:
    """Return true levels, scores and parents of a population whose worst quarter copies its best quarter."""
    rng = np.random.default_rng(seed)
    parents: list[int | None] = [None] * members
    levels, scores, share = rng.normal(size=members), np.zeros(0), members // 4
    for generation in range(generations):
        scores = np.append(scores, levels[-members:] + noise * rng.normal(size=members))
        if generation + 1 < generations:
            first = generation * members
            ranks = np.argsort(scores[-members:])
            origins = np.arange(members)
            origins[ranks[:share]] = rng.permutation(ranks[members - share :])
            parents.extend(int(origin) + first for origin in origins)
            moves = 0.5 / (generation + 1) + change * rng.standard_t(3, size=members) / (generation + 1)
            levels = np.append(levels, levels[first + origins] + moves)
    return levels, scores, parents


def named(estimates: Estimates, heads: Collection[int], scores: Array) -> int:
    return estimates.winner(heads, int(np.argmax(np.where(np.isfinite(scores), scores, -np.inf))))


@pytest.mark.parametrize("seed", SEEDS)
def test_exact_scores_are_the_estimates_and_the_best_one_wins(seed: int) -> None:
    levels, scores, parents = planted(seed, noise=0.0)
    estimates = estimate(scores.tolist(), parents)
    assert estimates.exact
    assert np.array_equal(estimates.levels, levels)
    assert estimates.noise < 0.05
    assert named(estimates, HEADS, scores) == int(np.argmax(scores))


def recovered(noise: float, estimated: Sequence[Estimates]) -> None:
    ratios = [estimates.noise / noise for estimates in estimated]
    # Maximum likelihood takes a part of the noise for drift, a tenth here.
    assert np.median(ratios) == pytest.approx(0.9, abs=0.07)
    assert np.mean(np.abs(np.subtract(ratios, 0.9)) < 0.2) >= 0.9


def test_noise_is_recovered_and_estimates_are_more_than_twice_as_close_as_scores() -> None:
    populations = [planted(seed, noise=1.0) for seed in SEEDS]
    estimated = [estimate(scores.tolist(), parents) for _, scores, parents in populations]
    recovered(1.0, estimated)
    errors, winners, held = [], [], []
    for (levels, scores, _), estimates in zip(populations, estimated, strict=True):
        errors.append([abs(estimates.levels - levels).mean(), abs(scores - levels).mean()])
        winners.append(named(estimates, HEADS, scores))
        if (expected := estimates.expected(winners[-1], members=MEMBERS, maximize=True)) is not None:
            held.append(expected.low <= levels[winners[-1]] <= expected.high)
    assert np.mean(errors, axis=0) @ [2, -1] < 0
    assert np.mean([winner in HEADS for winner in winners]) >= 0.9
    assert len(held) > len(SEEDS) / 2
    assert np.mean(held) >= 0.9


@pytest.mark.parametrize("noise", [rarely(0.3), rarely(3.0)])  # above, with noise of 1
def test_noise_of_any_size_is_recovered(noise: float) -> None:
    populations = [planted(seed, noise=noise) for seed in SEEDS]
    recovered(noise, [estimate(scores.tolist(), parents) for _, scores, parents in populations])


@pytest.mark.parametrize("members", [2, rarely(4), rarely(MEMBERS)])  # of 16 members: above
def test_at_least_90_of_100_intervals_hold_the_true_level(members: int) -> None:
    held = []
    for seed in range(40):
        levels, scores, parents = planted(seed, noise=1.0, members=members)
        estimates = estimate(scores.tolist(), parents)
        place = named(estimates, range(len(scores) - members, len(scores)), scores)
        expected = estimates.expected(place, members=members, maximize=True)
        if expected is not None:
            held.append(expected.low <= levels[place] <= expected.high)
    assert len(held) > 20
    assert np.mean(held) >= 0.9


def test_small_studies_of_noise_are_rarely_taken_for_exact_and_exact_ones_rarely_for_unclear() -> None:
    def estimated(noise: float) -> list[Estimates]:
        populations = [planted(seed, noise=noise, members=8, generations=8) for seed in range(40)]
        return [estimate(scores.tolist(), parents) for _, scores, parents in populations]

    noisy, exact = estimated(1.0), estimated(0.0)
    assert np.mean([estimates.exact and not estimates.unclear for estimates in noisy]) < 0.2
    assert np.mean([estimates.unclear for estimates in noisy]) > 0.05
    assert np.mean([estimates.exact and not estimates.unclear for estimates in exact]) > 0.8


@pytest.mark.parametrize("noise", [0.0, 1.0])
@pytest.mark.parametrize(("factor", "shift"), [(1e-9, 0.0), (1e6, -3e6), (2.0, 1e3)])
def test_units_do_not_matter(noise: float, factor: float, shift: float) -> None:
    _, scores, parents = planted(3, noise=noise)
    first, second = (estimate(values.tolist(), parents) for values in (scores, factor * scores + shift))
    assert second.levels == pytest.approx(factor * first.levels + shift, rel=1e-6)
    assert second.stderrs == pytest.approx(factor * first.stderrs, rel=1e-4)
    assert second.noise == pytest.approx(factor * first.noise, rel=1e-4)
    assert second.exact == first.exact == (noise == 0)
    assert named(second, HEADS, scores) == named(first, HEADS, scores)


def test_losses_and_their_negatives_give_the_same() -> None:
    _, scores, parents = planted(5, noise=1.0)
    up = estimate([Maximize("x").order(score) for score in scores], parents)
    down = estimate([Minimize("x").order(-score) for score in scores], parents)
    assert np.array_equal(up.levels, down.levels)
    assert named(up, HEADS, scores) == named(down, HEADS, scores)


@pytest.mark.parametrize("value", [-1e12, -1e300, -math.inf, math.nan, math.inf])
def test_members_that_diverge_change_nothing_for_the_others(value: float) -> None:
    _, scores, parents = planted(7, noise=1.0)
    before = estimate(scores.tolist(), parents)
    lost = [place for place in range(1, len(scores), 9) if place != named(before, HEADS, scores)]
    scores[lost] = value
    after = estimate(scores.tolist(), parents)
    assert after.noise == pytest.approx(before.noise, rel=0.15)
    assert all(after.levels[place] == -math.inf for place in lost)
    assert named(after, lost, scores) not in lost
    others = np.isfinite(after.levels)
    assert abs(after.levels - before.levels)[others].mean() < 0.3


def test_an_old_trial_wins_that_is_significantly_better_than_all_heads() -> None:
    levels, scores, parents = planted(11, noise=1.0)
    # From generation 10 on all are 20 times the noise worse.
    fallen = scores - np.where(np.arange(len(scores)) >= 10 * MEMBERS, 20.0, 0.0)
    winner = named(estimate(fallen.tolist(), parents), HEADS, fallen)
    assert winner < 10 * MEMBERS
    assert levels[winner] > np.median(levels[: 10 * MEMBERS])


@pytest.mark.parametrize(
    ("scores", "parents"),
    [
        ([1.0, 3.0, 2.0], [None, None, 1]),
        ([1.0, 3.0, 3.0, math.nan], [None, 0, 1, 2]),
        ([float(place == 40) for place in range(80)], [None, *range(79)]),
    ],
)
def test_few_trials_and_scores_that_rarely_change_are_taken_as_they_are(
    scores: list[float], parents: Parents
) -> None:
    estimates = estimate(scores, parents)
    finite = [score for score in scores if math.isfinite(score)]
    assert estimates.exact
    assert estimates.unclear == (len(scores) < 20)
    assert estimates.levels[: len(finite)].tolist() == finite
    assert estimates.winner([len(scores) - 1], scores.index(max(finite))) == scores.index(max(finite))
    assert estimates.expected(0, members=MEMBERS, maximize=True) is None


def test_the_best_of_scores_that_are_mostly_equal_has_trained_long() -> None:
    """As where an episode succeeds or not, or a return has a maximum: the first success was luck."""
    parents = [None if place < MEMBERS else place - MEMBERS for place in range(MEMBERS * GENERATIONS)]
    chance = np.repeat(np.linspace(0.05, 0.95, GENERATIONS), MEMBERS)
    lucky = 0
    for seed in SEEDS:
        scores = np.where(np.random.default_rng(seed).random(len(chance)) < chance, 500.0, 100.0)
        winner = named(estimate(scores.tolist(), parents), HEADS, scores)
        assert scores[winner] == 500.0
        lucky += chance[winner] < 0.5
    assert lucky <= 1


def test_exact_scores_in_steps_name_one_of_the_best() -> None:
    for seed in SEEDS:
        levels, _, parents = planted(seed, noise=0.0)
        scores = np.floor(levels)
        assert scores[named(estimate(scores.tolist(), parents), HEADS, scores)] == scores.max()


@pytest.mark.parametrize("fastest", [0.01, 0.1, 0.3, 0.5])
def test_exact_losses_that_fall_exponentially_are_not_taken_for_noise(fastest: float) -> None:
    rates = np.geomspace(1e-4, fastest, MEMBERS)
    steps = 10 * np.arange(1, GENERATIONS + 1)[:, None]
    # Half of the members jump to the weights of the fastest one.
    rates[: MEMBERS // 2] = rates[-1]
    scores = -(100 * (1 - 2 * rates) ** (2 * steps)).ravel()
    parents = [None if place < MEMBERS else place - MEMBERS for place in range(len(scores))]
    estimates = estimate(scores.tolist(), parents)
    assert scores[named(estimates, HEADS, scores)] == scores.max()
    assert estimates.exact


def test_a_member_without_a_finite_score_never_wins() -> None:
    scores = [math.nan] * 80
    scores[3] = 1.0
    assert estimate(scores, [None, *range(79)]).winner([79], 3) == 3


def test_candidates_of_a_final_are_the_best_score_and_the_best_newest_trials() -> None:
    _, scores, parents = planted(3, noise=1.0)
    estimates, luckiest = estimate(scores.tolist(), parents), int(np.argmax(scores))
    assert luckiest not in HEADS
    chosen = estimates.candidates(HEADS, luckiest, 8)
    ranked = sorted(HEADS, key=lambda place: -estimates.levels[place])
    assert set(chosen) == {luckiest, *ranked[:7]}
    assert chosen == sorted(chosen, key=lambda place: -estimates.levels[place])
    assert estimates.candidates([luckiest], luckiest, 8) == [luckiest]
