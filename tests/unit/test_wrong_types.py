"""Constructors name an argument of a wrong type, and what they got."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import phyla
from facts import raises
from phyla.errors import MetricInvalid, UsageError
from phyla.evaluation import Maximum, Moments, PerSeed, Sum, TaskResult
from phyla.lineage import Schedule
from phyla.space.params import Params
from phyla.watcher.directory_watcher import Following

WRONG: list[Any] = ["3", 3, True, float("nan"), None, [1], object]


def _array(wrong: Any) -> Any:
    return np.array([wrong, wrong])


@pytest.mark.parametrize("wrong", WRONG, ids=repr)
@pytest.mark.parametrize(
    ("make", "name"),
    [
        (Schedule, "Schedule"),
        (Params, "Params"),
        (lambda wrong: phyla.Suite("quick", tasks=wrong), "Suite"),
        (PerSeed, "PerSeed"),
        (lambda wrong: TaskResult(task="near", tags=wrong, weight=-1.0), "TaskResult"),
        (lambda wrong: Following(snapshots=_array(wrong)), "Following"),
    ],
    ids=["Schedule", "Params", "Suite", "PerSeed", "TaskResult", "Following"],
)
def test_a_value_of_a_wrong_type_is_refused_with_its_class(
    make: Callable[[Any], object], name: str, wrong: Any
) -> None:
    with raises(UsageError, name):
        make(wrong)


@pytest.mark.parametrize("wrong", ["3", [1], object], ids=repr)
@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda wrong: Moments(n=1, mean=wrong), "mean"),
        (lambda wrong: Moments(n=1, m2=wrong), "m2"),
        (lambda wrong: Sum(n=1, total=wrong), "total"),
        (lambda wrong: Maximum(n=1, value=wrong), "value"),
        (lambda wrong: PerSeed({1: wrong}), "PerSeed"),
    ],
    ids=["mean", "m2", "total", "value", "PerSeed"],
)
def test_a_statistic_of_what_is_no_number_is_refused(
    make: Callable[[Any], object], field: str, wrong: Any
) -> None:
    with raises(MetricInvalid, field, repr(wrong)):
        make(wrong)


@pytest.mark.parametrize("wrong", [wrong for wrong in WRONG if wrong != "3"], ids=repr)
def test_the_marker_of_the_end_is_a_name(wrong: Any) -> None:
    with raises(UsageError, "done="):
        Following(done=wrong)
