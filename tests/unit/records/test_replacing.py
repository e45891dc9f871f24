"""Records are copied with changes as `dataclasses.replace` does it."""

import dataclasses
from typing import Any

import pytest

from phyla import records
from phyla.records import MemberState, replace

CHECKED = (records.Constrained, records.Pareto, records.StartFrom, records.WeightedSum)
"""Kinds that look at their fields when they are made."""
KINDS = [
    kind
    for kind in vars(records).values()
    if isinstance(kind, type) and dataclasses.is_dataclass(kind) and kind not in CHECKED
]


@dataclasses.dataclass(frozen=True, slots=True)
class Checked:
    """A record that looks at its fields when it is made."""

    first: int
    second: int = 0

    def __post_init__(self) -> None:
        if self.second < 0:
            raise ValueError("below 0")


@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_differs_in_what_was_changed_only(kind: Any) -> None:
    names = [field.name for field in dataclasses.fields(kind)]
    row = kind(**{name: f"old {name}" for name in names})
    changes = {name: f"new {name}" for name in names[::2]}
    before = dataclasses.asdict(row)
    assert replace(row, **changes) == dataclasses.replace(row, **changes) != row
    assert replace(row) == row
    assert dataclasses.asdict(row) == before
    with pytest.raises(TypeError, match="unknown"):
        replace(row, unknown=1)


def test_a_copy_is_frozen() -> None:
    member = replace(records.Member(study=1, index=2, state=MemberState.READY), index=3)
    with pytest.raises(dataclasses.FrozenInstanceError):
        member.index = 4  # type: ignore[misc]


def test_a_record_that_checks_itself_is_checked() -> None:
    assert replace(Checked(1), second=2) == Checked(1, 2)
    with pytest.raises(ValueError, match="below 0"):
        replace(Checked(1), second=-1)
