"""A final: which checkpoints it measures, in which order, and which one wins."""

import itertools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from effort import times
from facts import raises
from phyla import Final
from phyla.errors import ConfigurationError
from phyla.strategies.final import Due, expected, next_due

FINALS = st.builds(
    lambda candidates, more: Final(candidates=candidates, measurements=2 * candidates + 8 + more),
    st.integers(1, 12),
    st.integers(0, 60),
)

Measure = Callable[[int, int], float]
"""The score that a measurement gives: of which candidate, and how many of it came before."""
Measured = dict[int, list[float | None]]
SEEDS = st.integers(0, 999)


def noisy(seed: int) -> Measure:
    return lambda candidate, number: candidate + 5 * math.sin(seed + 17.3 * candidate + 5.1 * number)


def failing(seed: int, rate: float) -> Measure:
    """Noisy scores, of which some are not finite."""

    def measure(candidate: int, number: int) -> float:
        lost = (seed * 7919 + candidate * 104729 + number * 1299709) % 1000 < 1000 * rate
        return -math.inf if lost else noisy(seed)(candidate, number)

    return measure


def first(_count: int) -> int:
    return 0


def last(count: int) -> int:
    return count - 1


def hold(
    final: Final, candidates: Sequence[int], measure: Measure, choose: Callable[[int], int] = last
) -> tuple[Due, Measured]:
    """Hold a final. `choose` decides what is next: a measurement that is due begins, or one that runs ends."""
    measured: Measured = {candidate: [] for candidate in candidates}
    running: list[tuple[int, int]] = []
    for _ in range(10_000):
        due = next_due(final, candidates, measured)
        if not due.candidates and not running:
            return due, measured
        place = choose(len(due.candidates) + len(running))
        if place < len(due.candidates):
            running.append((due.candidates[place], len(measured[due.candidates[place]])))
            measured[due.candidates[place]].append(None)
        else:
            candidate, number = running.pop(place - len(due.candidates))
            measured[candidate][number] = measure(candidate, number)
    raise AssertionError("the final does not end")


def total(measured: Mapping[int, Sequence[object]]) -> int:
    return sum(map(len, measured.values()))


@given(final=FINALS, fewer=st.integers(0, 11))
@settings(max_examples=times(20, 400))
def test_rounds_halve_the_candidates_and_spend_all_measurements(final: Final, fewer: int) -> None:
    candidates = max(1, final.candidates - fewer)
    rounds = final.rounds(candidates)
    sizes, each = zip(*rounds, strict=True)
    assert (sizes[0], sizes[-1]) == (candidates, 1)
    assert all(after == (before + 1) // 2 for before, after in itertools.pairwise(sizes))
    assert min(each) >= 1
    assert each[-1] >= 2  # one measurement has no interval
    assert sum(size * times for size, times in rounds) == final.measurements


@given(final=FINALS, seed=SEEDS, rate=st.sampled_from((0.0, 0.0, 0.05, 0.5)), data=st.data())
@settings(max_examples=times(20, 400))
def test_the_number_and_the_speed_of_workers_do_not_matter(
    final: Final, seed: int, rate: float, data: st.DataObject
) -> None:
    candidates = range(final.candidates)
    alone = hold(final, candidates, failing(seed, rate))
    order = data.draw(st.randoms(use_true_random=False))
    due, measured = hold(final, candidates, failing(seed, rate), order.randrange)
    assert due == alone[0]
    lost = {candidate for candidate, scores in measured.items() if -math.inf in scores}
    assert {one: scores for one, scores in measured.items() if one not in lost} == {
        one: scores for one, scores in alone[1].items() if one not in lost
    }


@given(final=FINALS, seed=SEEDS, choose=st.sampled_from((first, last)))
@settings(max_examples=times(20, 400))
def test_all_candidates_are_measured_and_the_budget_is_spent(
    final: Final, seed: int, choose: Callable[[int], int]
) -> None:
    candidates = range(final.candidates)
    due, measured = hold(final, candidates, noisy(seed), choose)
    assert all(measured.values())
    assert total(measured) == final.measurements
    assert due.winner is not None
    # The winner has the most measurements: those that chose it, and those of the last round.
    assert len(measured[due.winner]) == max(map(len, measured.values()))
    assert len(measured[due.winner]) - due.confirming == final.rounds(len(candidates))[-1][1]


@given(final=FINALS, seed=SEEDS)
@settings(max_examples=times(20, 400))
def test_the_last_round_changes_nothing_about_who_wins(final: Final, seed: int) -> None:
    candidates = range(final.candidates)
    due, _ = hold(final, candidates, noisy(seed))

    def worse(candidate: int, number: int) -> float:
        chosen = candidate == due.winner and number >= due.confirming
        return -1e9 if chosen else noisy(seed)(candidate, number)

    again, _ = hold(final, candidates, worse)
    assert again == due


@given(final=FINALS, seed=SEEDS, rate=st.sampled_from((0.02, 0.1, 0.5, 1.0)))
@example(final=Final(candidates=2, measurements=32), seed=0, rate=0.0)
@settings(max_examples=times(20, 400))
def test_candidates_without_a_finite_score_drop_out(final: Final, seed: int, rate: float) -> None:
    candidates, measure = range(final.candidates), failing(seed, rate)
    due, measured = hold(final, candidates, measure)
    lost = {candidate for candidate, scores in measured.items() if -math.inf in scores}
    assert due.winner not in lost
    assert (due.winner is None) == (lost == set(candidates))
    assert all(measured[candidate][-1] == -math.inf for candidate in lost), "nothing is due of one that is out"
    # Each one that drops out costs at most what another one needs in its place.
    most = sum(each for _, each in final.rounds(len(candidates)))
    assert max(map(len, measured.values())) <= most
    assert total(measured) <= final.measurements + len(lost) * most


def test_one_that_drops_out_does_not_change_what_the_others_need() -> None:
    final = Final(candidates=4, measurements=32)
    assert final.rounds(4) == [(4, 2), (2, 6), (1, 12)]
    measured: Measured = {1: [5.0, -math.inf], 2: [4.0, 4.0], 3: [3.0, 3.0], 4: [2.0, 2.0]}
    assert next_due(final, [1, 2, 3, 4], measured) == Due(candidates=(2,) * 6 + (3,) * 6, confirming=2)
    second: Measured = {**measured, 2: [4.0] * 8, 3: [3.0] * 8}
    assert next_due(final, [1, 2, 3, 4], second) == Due(candidates=(2,) * 12, winner=2, confirming=8)
    # The winner drops out in the last round: the next best one takes its place.
    third: Measured = {**second, 2: [*[4.0] * 9, math.nan]}
    assert next_due(final, [1, 2, 3, 4], third) == Due(candidates=(4,) * 6, confirming=2)


def test_nothing_is_due_twice_and_a_round_waits_for_all_of_its_measurements() -> None:
    final = Final(candidates=2, measurements=6)
    assert final.rounds(2) == [(2, 1), (1, 4)]
    assert next_due(final, [7, 8], {}).candidates == (7, 8)
    assert next_due(final, [7, 8], {8: [None]}).candidates == (7,)
    assert next_due(final, [7, 8], {7: [None], 8: [1.0]}) == Due()
    chosen = next_due(final, [7, 8], {7: [0.0], 8: [1.0]})
    assert chosen == Due(candidates=(8,) * 4, winner=8, confirming=1)
    assert next_due(final, [7, 8], {7: [0.0], 8: [1.0, None, 0.5]}).candidates == (8,) * 2
    running: Measured = {7: [0.0], 8: [1.0, None, 0.5, 0.5, 0.5]}
    assert next_due(final, [7, 8], running) == Due(winner=8, confirming=1)


def test_of_equal_candidates_the_first_wins() -> None:
    due, _ = hold(Final(candidates=4, measurements=16), [3, 1, 2, 0], lambda _candidate, _number: 0.5)
    assert due.winner == 3


def test_without_candidates_there_is_nothing_to_do() -> None:
    assert next_due(Final(), [], {5: [1.0]}) == Due()


def test_a_larger_final_continues_a_smaller_one() -> None:
    small, large = Final(candidates=4, measurements=16), Final(candidates=4, measurements=64)
    _, measured = hold(small, range(4), noisy(3))
    begun = total(measured)
    while due := next_due(large, range(4), measured).candidates:
        measured[due[0]].append(noisy(3)(due[0], len(measured[due[0]])))
    alone, fresh = hold(large, range(4), noisy(3))
    assert next_due(large, range(4), measured) == alone
    assert total(measured) < total(fresh) + begun


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        ({"candidates": 0}, ("candidates=0",)),
        ({"candidates": True}, ("candidates=True",)),
        ({"candidates": 2.5}, ("candidates=2.5",)),
        ({"measurements": 1}, ("measurements=1",)),
        ({"measurements": 3}, ("Final(measurements=3, candidates=8)", "16")),
        ({"candidates": 20, "measurements": 40}, ("candidates=20", "measurements=40", "42")),
        ({"candidates": 10**30}, ("candidates",)),
        ({"candidate": 3}, ("candidates",)),
    ],
    ids=str,
)
def test_settings_out_of_range_are_refused(arguments: dict[str, int], facts: Sequence[str]) -> None:
    with raises(ConfigurationError, *facts):
        Final(**arguments)


def test_the_fewest_measurements_leave_two_for_the_winner() -> None:
    for candidates in range(2, 40):
        least = 1 + sum(size for size, _ in Final(candidates=candidates, measurements=9999).rounds(candidates))
        rounds = Final(candidates=candidates, measurements=least).rounds(candidates)
        assert [each for _, each in rounds] == [1] * (len(rounds) - 1) + [2]
        with raises(ConfigurationError, least):
            Final(candidates=candidates, measurements=least - 1)


def test_an_expected_score_is_the_mean_with_students_interval() -> None:
    assert expected([]) is None
    alone = expected([0.25])
    assert alone is not None
    assert (alone.value, alone.low, alone.high) == (0.25, -math.inf, math.inf)
    several = expected([1.0, 2.0, 3.0, 6.0])
    assert several is not None
    # 2.16 / 2 standard errors, 3.182 of them with three degrees of freedom
    wide = 3.1824463 * statistics.stdev([1.0, 2.0, 3.0, 6.0]) / 2
    assert (several.value, several.low, several.high) == pytest.approx((3.0, 3.0 - wide, 3.0 + wide))
