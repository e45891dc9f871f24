"""Which number of a trial's reports is its fitness."""

import math

import pytest

from phyla.records import Goal, Maximize, Minimize
from phyla.strategies import BestOfLast, Last, MeanOfLast

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize("goal", [Maximize("x"), Minimize("x")])
def test_the_last_report_and_the_mean_of_the_last_ones(goal: Goal) -> None:
    assert Last()([9.0, 1.0, 2.0], goal) == 2.0
    assert MeanOfLast(2)([9.0, 1.0, 2.0], goal) == 1.5
    assert MeanOfLast(5)([9.0, 1.0, 2.0], goal) == 4.0
    assert MeanOfLast(2)([NAN, 1.0, 2.0], goal) == 1.5
    assert math.isnan(MeanOfLast(2)([1.0, NAN, 2.0], goal))
    assert math.isnan(MeanOfLast(2)([1.0, INF, 2.0], goal))


def test_the_best_of_the_last_reports() -> None:
    assert BestOfLast(3)([9.0, 1.0, 3.0, 2.0], Maximize("x")) == 3.0
    assert BestOfLast(3)([0.0, 2.0, 1.0, 3.0], Minimize("x")) == 1.0
    assert BestOfLast(9)([9.0, 1.0], Maximize("x")) == 9.0
    # What diverged once is judged by the rest.
    assert BestOfLast(3)([NAN, 2.0, INF], Maximize("x")) == 2.0
    assert BestOfLast(3)([-INF, 2.0, 3.0], Minimize("x")) == 2.0
    assert math.isnan(BestOfLast(2)([1.0, NAN, INF], Maximize("x")))
