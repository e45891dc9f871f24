"""How much tests do: on each change, or with `--thorough`, before a release."""

import os
from collections.abc import Iterable
from typing import Any

import pytest

VARIABLE = "PHYLA_TESTS_THOROUGH"


def thorough() -> bool:
    """Return whether a release waits for these tests."""
    return VARIABLE in os.environ


def times(usually: int, thoroughly: int) -> int:
    """Return how often to try something, such as the number of seeds, or of examples that are drawn."""
    return thoroughly if thorough() else usually


def rarely(*values: object) -> Any:
    """Return the arguments of one more case of a rule that other cases hold, for `pytest.mark.parametrize`."""
    return pytest.param(*values, marks=pytest.mark.thorough)


def covering(cases: Iterable[tuple[object, ...]]) -> list[Any]:
    """Return all cases for `pytest.mark.parametrize`; before a release only, those without a value that is new.

    On each change, each value of each argument is tried at least once.
    """
    seen: set[tuple[int, str]] = set()
    chosen = []
    for case in cases:
        values = {(place, repr(value)) for place, value in enumerate(case)}
        chosen.append(case if values - seen else rarely(*case))
        seen |= values
    return chosen
