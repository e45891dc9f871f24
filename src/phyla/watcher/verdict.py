"""What a format says of the files of one checkpoint, before time comes into it."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Self, final


class Finish(IntEnum):
    """How far a checkpoint is, worst last."""

    COMPLETE = 0
    """Its format shows that nothing is missing: ready."""
    SETTLING = 1
    """Nothing shows that anything is missing: ready once nothing changed for the quiet period."""
    PARTIAL = 2
    """Something is missing or damaged: bad once nothing changed for the quiet period."""
    WAITING = 3
    """It cannot be told, however long nothing changes."""
    UNREADABLE = 4
    """The system refuses to show it: bad once nothing changed for the quiet period, and looked at again."""


@final
@dataclass(frozen=True, slots=True)
class Verdict:
    """How far a checkpoint is, and why.

    Attributes:
        finish: how far.
        why: in words, with names and numbers.
    """

    finish: Finish
    why: str

    @classmethod
    def complete(cls, why: str) -> Self:
        """Nothing is missing."""
        return cls(Finish.COMPLETE, why)

    @classmethod
    def settling(cls, why: str) -> Self:
        """Only time can tell."""
        return cls(Finish.SETTLING, why)

    @classmethod
    def partial(cls, why: str) -> Self:
        """Something is missing or damaged."""
        return cls(Finish.PARTIAL, why)

    @classmethod
    def waiting(cls, why: str) -> Self:
        """It cannot be told yet."""
        return cls(Finish.WAITING, why)

    @classmethod
    def unreadable(cls, why: str) -> Self:
        """The system refuses to show it."""
        return cls(Finish.UNREADABLE, why)


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the first of the worst; nothing is missing where there are none."""
    return max(verdicts, key=lambda verdict: verdict.finish, default=Verdict.complete("nothing to check"))
