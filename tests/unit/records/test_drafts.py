"""Records are made as dataclasses make them, and copied with changes as `dataclasses.replace` does it."""

import copy
import dataclasses
import inspect
import pickle
from typing import Any

import pytest

from phyla import records
from phyla.records import MemberState, drafted, replace

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


@dataclasses.dataclass(frozen=True, slots=True)
class Usual:
    """A record as dataclasses make it."""

    first: int
    rest: list[int] = dataclasses.field(default_factory=list)
    kind: str = "usual"
    last: int | None = dataclasses.field(default=None, kw_only=True)


@drafted
@dataclasses.dataclass(frozen=True, slots=True)
class Drafted:
    """The same, made as a draft."""

    first: int
    rest: list[int] = dataclasses.field(default_factory=list)
    kind: str = "usual"
    last: int | None = dataclasses.field(default=None, kw_only=True)


def test_a_drafted_record_is_made_like_any_other() -> None:
    for given, named in (((1,), {}), ((1, [2], "x"), {"last": 3}), ((), {"first": 1, "rest": [2]})):
        made: Any = Drafted(*given, **named)
        usual: Any = Usual(*given, **named)
        assert dataclasses.asdict(made) == dataclasses.asdict(usual)
        assert type(made) is Drafted
    assert inspect.signature(Drafted) == inspect.signature(Usual)
    assert Drafted(1).rest is not Drafted(1).rest
    kind: Any = Drafted
    with pytest.raises(TypeError, match=r"Drafted\.__init__.*'first'"):
        kind()
    with pytest.raises(TypeError, match=r"Drafted\.__init__.*positional"):
        kind(1, [], "x", 4)
    with pytest.raises(TypeError, match=r"Drafted\.__init__.*'second'"):
        kind(1, second=2)


def test_a_drafted_record_is_frozen() -> None:
    made = Drafted(1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.first = 2  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        del made.first
    with pytest.raises((dataclasses.FrozenInstanceError, TypeError, AttributeError)):
        made.new = 2  # type: ignore[attr-defined]
    assert made == Drafted(1)


def test_a_drafted_record_can_be_copied_and_pickled() -> None:
    made = Drafted(1, [2], last=3)
    for again in (copy.copy(made), copy.deepcopy(made), pickle.loads(pickle.dumps(made)), replace(made)):  # noqa: S301  # our own
        assert again == made
        assert type(again) is Drafted
    assert dataclasses.replace(made, last=4) == Drafted(1, [2], last=4)


def test_what_checks_itself_cannot_be_drafted() -> None:
    with pytest.raises(TypeError, match="without checks"):
        drafted(Checked)
    with pytest.raises(TypeError, match="frozen dataclass with slots"):
        drafted(dataclasses.make_dataclass("Open", ["first"], frozen=True))
    with pytest.raises(TypeError, match="frozen dataclass with slots"):
        drafted(dataclasses.make_dataclass("Open", ["first"], slots=True))
