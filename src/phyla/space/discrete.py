"""The parameters with listed values: Choice (no order) and Ordinal (an order)."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, ClassVar, final

from phyla.errors import SpaceError
from phyla.space.scalars import Scalar, When, as_scalar, as_when, call, checked, fraction, is_same

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, slots=True, repr=False)
class _Listed:
    """What Choice and Ordinal have in common; see there for the arguments."""

    values: Sequence[Scalar]
    _: KW_ONLY
    initial: Scalar = None
    default: Scalar = None
    when: When | None = field(default=None, hash=False)

    kind: ClassVar[str]

    def __post_init__(self) -> None:
        put, written = partial(object.__setattr__, self), repr(self)
        try:
            put("values", _distinct(self.values))
            if self.initial is not None:
                put("initial", checked(self.check, self.initial, "initial"))
            if self.default is not None:
                put("default", checked(self.check, self.default, "default"))
            put("when", as_when(self.when))
        except SpaceError as error:
            raise SpaceError(f"{written}: {error}") from None

    def __repr__(self) -> str:
        values: object = self.values
        return call(self, (list(values) if isinstance(values, tuple) else values,))

    def check(self, value: object) -> Scalar:
        """`value` as it is listed.

        Raises:
            SpaceError: it is not listed.
        """
        return self.values[self._index(value)]

    def draw(self, rng: "np.random.Generator") -> Scalar:
        """A value from the prior: uniform."""
        return self.values[int(rng.random() * len(self.values))]

    def start(self, rng: "np.random.Generator") -> Scalar:
        """A value to start from: the initial one, or one from the prior."""
        return self.draw(rng) if self.initial is None else self.initial

    def _index(self, value: object) -> int:
        scalar = as_scalar(value, "a value")
        for index, listed in enumerate(self.values):
            if is_same(listed, scalar):
                return index
        raise SpaceError(f"{value!r} is none of {list(self.values)!r}")


@final
@dataclass(frozen=True, slots=True, repr=False)
class Choice(_Listed):
    """One of some values without an order.

    There is no direction to perturb it in, so perturbing is a fresh uniform draw over all values, which may
    give the same one again.

    Args:
        values: The values, distinct JSON scalars: str, int, float, bool or None. A single one is allowed.
        initial: The value that members start from. None means that it is drawn; to start from the *value*
            None use `Space(initial=[...])`.
        default: The value of trials that ran before this parameter was added to the study; None for none.
        when: Names of other parameters and the values they must have for this one to be active.

    Raises:
        SpaceError: the arguments make no sense together; the message shows them.

    Source:
        Li et al. 2019, arXiv 1902.01894 (categoricals are resampled).
    """

    kind: ClassVar[str] = "choice"

    def perturb(self, value: Scalar, factor: float, rng: "np.random.Generator") -> tuple[Scalar, str]:
        """A fresh draw over all values, whatever the factor; always "resampled"."""
        return self.draw(rng), "resampled"


@final
@dataclass(frozen=True, slots=True, repr=False)
class Ordinal(_Listed):
    """One of some values in the order in which they are listed.

    Perturbing goes to the next value for a factor above 1 and to the one before it for a factor below 1; at
    either end it stays.

    Args:
        values: The values in order, distinct JSON scalars: str, int, float, bool or None.
        initial: The value that members start from. None means that it is drawn; to start from the *value*
            None use `Space(initial=[...])`.
        default: The value of trials that ran before this parameter was added to the study; None for none.
        when: Names of other parameters and the values they must have for this one to be active.

    Raises:
        SpaceError: the arguments make no sense together; the message shows them.

    Source:
        Li et al. 2019, arXiv 1902.01894 (discrete parameters go to the next lower or higher value).
    """

    kind: ClassVar[str] = "ordinal"

    def perturb(self, value: Scalar, factor: float, rng: "np.random.Generator") -> tuple[Scalar, str]:
        """The neighbour above or below, as the factor says; always "neighbour"."""
        index = self._index(value) + (1 if factor > 1.0 else -1)
        return self.values[min(max(index, 0), len(self.values) - 1)], "neighbour"

    def unit(self, value: object) -> float:
        """Where `value` lies between the first (0) and the last value (1), evenly spaced.

        Raises:
            SpaceError: it is not listed.
        """
        return self._index(value) / max(len(self.values) - 1, 1)

    def from_unit(self, u: float) -> Scalar:
        """The value nearest to the position `u` between the first (0) and the last value (1).

        Raises:
            SpaceError: `u` is not a number.
        """
        return self.values[round(fraction(u) * (len(self.values) - 1))]


def _distinct(values: object) -> tuple[Scalar, ...]:
    if isinstance(values, str | bytes) or not isinstance(values, Sequence):
        raise SpaceError(
            f"the values must be a list, got {values!r}; a list keeps its order, so that every run draws the same"
        )
    if not values:
        raise SpaceError("there must be at least one value")
    listed = tuple(as_scalar(value, "a value") for value in values)
    for position, value in enumerate(listed):
        # Python's own equality: neither `in` nor a dict tells True and 1 apart.
        if value in listed[:position]:
            first = repr(listed[listed.index(value)])
            raise SpaceError(f"{value!r} is listed twice{'' if first == repr(value) else f' (as {first})'}")
    return listed
