"""How good a study was after how much work."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compared import Line, attempt, study_of
from phyla.records import JobState, StudyState
from phyla.report import StudyData
from phyla.report.columns import Attempts
from phyla.report.measures import Curve, band, curve, time_in
from report_study import columns, large, records_of, simulated

FITNESS = st.one_of(st.none(), st.integers(-5, 5).map(float), st.just(math.nan))


@st.composite
def histories(draw: st.DrawFn) -> list[Line]:
    """Completed trials, whose times may coincide."""
    lines: list[Line] = []
    now = 0.0
    for _ in range(draw(st.integers(0, 12))):
        now += draw(st.integers(0, 3))
        lines.append((draw(st.integers(0, 2)), draw(st.integers(1, 9)), now, draw(FITNESS)))
    return lines


def finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


@given(histories(), st.booleans(), st.integers(0, 120))
def test_the_best_after_some_steps_is_the_best_of_what_was_done_by_then(
    lines: list[Line], maximize: bool, steps: int
) -> None:
    found = curve(study_of(lines, maximize=maximize))
    done = [line[3] for place, line in enumerate(lines) if sum(one[1] for one in lines[: place + 1]) <= steps]
    known = [value for value in done if value is not None and math.isfinite(value)]
    best = (max if maximize else min)(known) if known else None
    assert found.at(steps) == best
    assert found.last == sum(line[1] for line in lines)


@given(histories())
def test_a_curve_changes_where_it_says(lines: list[Line]) -> None:
    found = curve(study_of(lines))
    assert list(found.xs) == sorted(set(found.xs))
    assert all(a < b for a, b in zip(found.ys, found.ys[1:], strict=False))
    assert len(found.xs) == len(found.ys)


def test_a_curve_is_continuous_from_the_right() -> None:
    one = Curve(xs=(2.0, 5.0), ys=(1.0, 3.0), last=8.0, finished=False)
    assert [one.at(x) for x in (1.999, 2.0, 4.999, 5.0, 8.0, 8.001)] == [None, 1.0, 1.0, 3.0, 3.0, None]
    assert replace(one, finished=True).at(1e9) == 3.0
    assert [one.first(y, maximize=True) for y in (0.5, 1.0, 2.0, 3.0, 3.1)] == [2.0, 2.0, 5.0, 5.0, None]
    down = Curve(xs=(2.0, 5.0), ys=(3.0, 1.0), last=8.0, finished=False)
    assert [down.first(y, maximize=False) for y in (3.5, 2.0, 0.5)] == [2.0, 5.0, None]


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 10)), max_size=8), st.integers(-1, 45))
def test_time_passes_while_something_is_running(spans: list[tuple[int, int]], moment: int) -> None:
    intervals = [(float(begin), float(begin + length)) for begin, length in spans]
    seconds = {second for begin, length in spans for second in range(begin, begin + length) if second < moment}
    assert time_in(intervals)(moment) == len(seconds)


def test_time_stands_still_while_a_study_was_interrupted() -> None:
    data = study_of([(0, 5, 10.0, 1.0), (0, 5, 20.0, 2.0)])
    first, second = records_of(data)
    paused = replace(
        data,
        attempts=Attempts.of([attempt(1, 0.0, 10.0), attempt(2, 1010.0, 1020.0)]),
        trials=columns([first, replace(second, started_at=1010.0, ended_at=1020.0)]),
    )
    assert curve(paused, by="time").xs == curve(data, by="time").xs == (10.0, 20.0)
    tasks = Attempts.of([attempt(3, 500.0, 503.0), attempt(4, 1015.0, 1018.0)])
    evaluated = replace(paused, evaluating=tasks)
    assert curve(evaluated, by="time").xs == (10.0, 23.0)


def test_what_stopped_trials_trained_is_spent() -> None:
    data = study_of([(0, 5, 10.0, 1.0), (1, 5, 20.0, 2.0)])
    first, second = records_of(data)
    stopped: dict[str, Any] = {
        "state": JobState.CANCELLED,
        "stop_reason": {"rule": "r", "step": 3},
        "reached_step": 3,
    }
    lost = replace(first, id=3, ended_at=15.0, fitness=None, order=None, **stopped)
    cost = replace(data, trials=columns([first, second, lost, replace(lost, id=4, ended_at=25.0)]))
    assert curve(cost) == Curve(xs=(5.0, 13.0), ys=(1.0, 2.0), last=16.0, finished=True)
    assert (data.total_steps, cost.total_steps) == (10, 16)


@pytest.mark.parametrize(
    "make", [simulated, partial(simulated, maximize=False, failing=0.2), partial(large, 10, 20)]
)
def test_the_last_value_of_a_study_is_its_best(make: Callable[[], StudyData]) -> None:
    data = make()
    best = data.best
    assert best is not None
    found = curve(data)
    assert found.ys[-1] == best.fitness
    assert found.last == data.total_steps


CURVES = st.lists(
    st.tuples(
        st.lists(st.tuples(st.integers(1, 20), st.integers(-9, 9)), min_size=1, max_size=6),
        st.booleans(),
        st.integers(0, 5),
    ),
    min_size=1,
    max_size=5,
)


@given(CURVES, st.floats(0, 30))
def test_a_band_is_the_median_and_the_quartiles_where_all_have_a_value(
    given_curves: list[tuple[list[tuple[int, int]], bool, int]], x: float
) -> None:
    curves = []
    for points, finished, more in given_curves:
        steps = dict(sorted((float(at), float(value)) for at, value in points))
        last = max(steps) + more
        curves.append(Curve(xs=tuple(steps), ys=tuple(steps.values()), last=last, finished=finished))
    found = band(curves)
    values = [one.at(x) for one in curves]
    shown = Curve(xs=found.xs, ys=found.middle, last=found.xs[-1] if found.xs else -1.0, finished=False)
    if x <= max(one.last for one in curves) and None not in values:
        place = max(at for at, known in enumerate(found.xs) if known <= x)
        if x <= found.xs[-1]:
            assert shown.at(x) == found.middle[place]
        expected = np.quantile(np.array(values, dtype=float), [0.25, 0.5, 0.75])
        assert [found.low[place], found.middle[place], found.high[place]] == expected.tolist()
    elif found.xs:
        assert shown.at(x) is None


def test_what_never_had_a_value_has_no_band() -> None:
    nothing = curve(study_of([(0, 5, 1.0, None)], state=StudyState.STOPPED))
    assert (nothing.ys, nothing.at(5.0), nothing.last) == ((), None, 5.0)
    assert band([nothing]).xs == ()
    some = curve(study_of([(0, 5, 1.0, 2.0)]))
    assert band([nothing, some]).middle == (2.0,)


def test_the_band_of_one_that_starts_late_and_one_that_ended_early_is_empty() -> None:
    early = Curve(xs=(1.0,), ys=(1.0,), last=3.0, finished=False)
    late = Curve(xs=(5.0,), ys=(2.0,), last=9.0, finished=True)
    assert band([early, late]).xs == ()
