"""Constructors name an argument of a wrong type, and what they got."""

from collections.abc import Callable
from typing import Any

import pytest

import phyla
from facts import raises
from phyla.errors import UsageError
from phyla.lineage import Schedule
from phyla.space.params import Params
from phyla.watcher.directory_watcher import Following

WRONG: list[Any] = ["3", 3, True, float("nan"), None, [1], object]


@pytest.mark.parametrize("wrong", WRONG, ids=repr)
@pytest.mark.parametrize(
    ("make", "name"),
    [
        (Schedule, "Schedule"),
        (Params, "Params"),
        (lambda wrong: phyla.Suite("quick", tasks=wrong), "Suite"),
    ],
    ids=["Schedule", "Params", "Suite"],
)
def test_a_value_of_a_wrong_type_is_refused_with_its_class(
    make: Callable[[Any], object], name: str, wrong: Any
) -> None:
    with raises(UsageError, name):
        make(wrong)


@pytest.mark.parametrize("wrong", [wrong for wrong in WRONG if wrong != "3"], ids=repr)
def test_the_marker_of_the_end_is_a_name(wrong: Any) -> None:
    with raises(UsageError, "done="):
        Following(done=wrong)
