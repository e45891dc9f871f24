"""Where a sequence of checkpoints got worse: rates of alarms, and what the order of results must not change."""

import math
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from alarms import SCENES, arrivals, measure, outcome
from hypothesis import given
from hypothesis import strategies as st

from effort import times
from phyla.evaluation import Moments
from phyla.evaluation.recorder import Recorder
from phyla.evaluation.regression import HISTORY, Measured, Regression, regressions


def line(values: Sequence[float], stderr: float | None = 0.01) -> list[Measured]:
    return [Measured(value=value, stderr=stderr) for value in values]


def places(values: Sequence[float], stderr: float | None = 0.01, *, maximize: bool = True) -> list[int]:
    return [alarm.place for alarm in regressions(line(values, stderr), maximize=maximize)]


def level(seed: int, count: int = 60) -> list[float]:
    return [float(value) for value in np.random.default_rng(seed).normal(0.5, 0.01, count)]


@pytest.mark.parametrize("items", [False, True])
def test_equal_checkpoints_are_hardly_ever_called_worse(items: bool) -> None:
    alarms = [outcome("equal", (2, 0, seed), items=items)["alarms"] for seed in range(times(8, 20))]
    assert sum(map(len, alarms)) <= times(2, 4)  # of 1,600, or 4,000


@pytest.mark.parametrize(
    ("scene", "within", "share"), [("falls by 0.12 at 150", 5, 0.9), ("falls by 0.35 at 150", 1, 1.0)]
)
@pytest.mark.parametrize("items", [False, True])
def test_a_fall_is_seen_soon(scene: str, within: int, share: float, items: bool) -> None:
    at, _ = SCENES[scene]
    assert at is not None
    alarms = [outcome(scene, (2, 7, seed), items=items)["alarms"] for seed in range(times(8, 20))]
    assert sum(any(at <= place < at + within for place in each) for each in alarms) >= share * len(alarms)
    assert sum(place < at for each in alarms for place in each) <= times(1, 3)


def test_a_slow_decay_is_seen_and_a_rise_that_ends_is_not() -> None:
    seeds = [(2, 13, seed) for seed in range(8)]
    decays = [outcome("decays by 0.35 over 50", seed, items=False)["alarms"] for seed in seeds]
    assert all(any(100 <= place < 150 for place in each) for each in decays)
    assert [outcome("rises, then level", seed, items=False)["alarms"] for seed in seeds] == [[]] * 8


@pytest.mark.parametrize("order", ["live", "backlog", "slow", "shuffled"])
def test_the_order_of_results_does_not_matter(order: str) -> None:
    measured = measure("falls by 0.35 at 150", (2, 8, 0), items=False)
    there: dict[int, Measured] = {}
    for place in arrivals(order, np.random.default_rng(0)):
        there[place] = measured[place]
    assert regressions([there[place] for place in sorted(there)]) == regressions(measured)
    assert 150 in [alarm.place for alarm in regressions(measured)]


def test_the_past_does_not_depend_on_the_future() -> None:
    measured = measure("falls by 0.35 at 10", (2, 10, 1), items=False)
    whole = regressions(measured)
    for end in (11, 12, 100):
        seen = [replace(alarm, last=0) for alarm in regressions(measured[:end])]
        assert seen == [replace(alarm, last=0) for alarm in whole if alarm.place < end]


def test_one_fall_is_one_alarm_and_the_new_level_is_the_next_reference() -> None:
    values = level(0, 40) + [value - 0.2 for value in level(1, 40)] + [value - 0.4 for value in level(2, 40)]
    first, second = regressions(line(values))
    assert (first.first, first.place, first.last, first.after) == (40, 40, 47, 1)
    assert second.place == 80
    assert first.reference == pytest.approx(0.5, abs=0.01)
    assert second.reference == pytest.approx(0.3, abs=0.01)


def test_a_single_bad_checkpoint_does_not_spoil_the_reference() -> None:
    values = level(3, 40)
    values[20] = values[30] = 0.3
    first, second = regressions(line(values))
    assert (first.first, first.last, second.first, second.last) == (20, 20, 30, 30)
    assert second.reference == pytest.approx(0.5, abs=0.01)


def test_two_checkpoints_are_enough_where_standard_errors_are_known() -> None:
    assert places([0.9, 0.1]) == [1]
    assert places([0.1, 0.9]) == []
    assert places([2.70, 8.08], maximize=False) == [1]
    assert places([0.9, 0.1], stderr=None) == []


def test_without_standard_errors_the_past_tells_the_noise() -> None:
    values = level(4, 50)
    assert places([*values, 0.3], stderr=None) == [50]
    assert places(values, stderr=None) == []


def test_pairing_finds_what_means_cannot() -> None:
    rng = np.random.default_rng(5)
    difficulty = rng.normal(size=64)

    def recorded(shift: float, *, seeded: bool) -> Measured:
        recorder = Recorder()
        for seed, value in enumerate(difficulty + shift + 0.01 * rng.normal(size=64)):
            recorder.record({"x": float(value)}, seed=seed if seeded else None)
        return Measured.of(recorder.statistics(), "x")

    for seeded, found in ((True, [2]), (False, [])):
        sequence = [recorded(shift, seeded=seeded) for shift in (0, 0, -0.1)]
        assert [alarm.place for alarm in regressions(sequence)] == found


def test_seeds_that_differ_are_not_paired() -> None:
    def seeded(*seeds: int) -> Measured:
        return Measured(value=1.0 - seeds[0], stderr=1.0, seeds=dict.fromkeys(seeds, 1.0 - seeds[0]))

    assert [alarm.place for alarm in regressions([seeded(0, 2), seeded(1, 2)])] == []
    same = [replace(seeded(0, 2), seeds={1: value, 2: value}, value=value) for value in (1.0, 0.0)]
    assert [alarm.place for alarm in regressions(same)] == [1]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_no_number_any_more_is_a_regression(bad: float) -> None:
    (alarm,) = regressions(line([0.5, 0.5, bad, bad, 0.5, 0.5]))
    assert (alarm.first, alarm.place, alarm.last, alarm.before, alarm.p) == (2, 2, 3, 0, 0.0)
    assert regressions(line([bad, bad, 0.5, 0.5])) == []


@pytest.mark.parametrize(
    ("values", "found"),
    [([5.0, 5.0], []), ([6.0, 5.0], [1]), ([5.0, 6.0], []), ([0.0, 0.0], []), ([0.1 + 0.2, 0.3], []), ([], [])],
)
def test_samples_that_do_not_vary_decide_for_themselves(values: list[float], found: list[int]) -> None:
    assert places(values, stderr=0.0) == found


def test_more_metrics_share_the_error() -> None:
    values = [*level(6, 40), 0.45]
    (alarm,) = regressions(line(values))
    assert alarm.place == 40
    assert regressions(line(values), metrics=1_000_000_000) == []


@given(st.lists(st.floats(-1e6, 1e6) | st.just(math.nan), max_size=40), st.booleans())
def test_the_other_direction_is_the_mirror_image(values: list[float], maximize: bool) -> None:
    def facts(alarms: Sequence[Regression]) -> list[tuple[int, int, int]]:
        return [(alarm.first, alarm.place, alarm.last) for alarm in alarms]

    mirrored = regressions(line([-value for value in values]), maximize=not maximize)
    assert facts(regressions(line(values), maximize=maximize)) == facts(mirrored)


def test_one_monstrous_value_is_forgotten() -> None:
    values = level(7, 3 * HISTORY)
    values[5] = -1e300
    values[-1] = 0.3
    assert places(values)[-1] == len(values) - 1


def test_the_statistics_of_a_metric_are_read() -> None:
    moments = Moments.of([1.0, 2.0, 4.0])
    assert Measured.of({"x": moments}, "x") == Measured(value=moments.mean, stderr=moments.stderr)


def test_importing_it_does_not_import_scipy() -> None:
    code = "import sys, phyla.evaluation.regression; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "scipy" not in done.stdout.split()


@pytest.mark.parametrize("stderr", [1e200, sys.float_info.max, math.inf])
def test_a_standard_error_whose_square_is_beyond_a_float(stderr: float) -> None:
    assert not regressions([Measured(value=value, stderr=stderr) for value in (1.0, 1.0, 0.5, 1.0)])
    assert Moments.of_mean(1.0, 5, stderr).stderr == math.inf
