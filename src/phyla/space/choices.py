"""Choice and Ordinal: listed values, how to draw them, and how to perturb them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from phyla.errors import SpaceError
from phyla.space.parameter import AnyParameter, fraction
from phyla.space.params import Scalar, as_scalar, is_same

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, slots=True, repr=False)
class _Listed(AnyParameter[Scalar]):
    """Common base of Choice and Ordinal."""

    values: Sequence[Scalar]

    def _settle(self, put: Callable[[str, object], None]) -> None:
        if isinstance(self.values, str | bytes) or not isinstance(self.values, Sequence):
            raise SpaceError(f"the values must be a list, which keeps its order, got {self.values!r}")
        if not self.values:
            raise SpaceError("there must be at least one value")
        listed = tuple(as_scalar(value, "a value") for value in self.values)
        seen: dict[Scalar, Scalar] = {}
        for value in listed:
            # Python's own equality: a dict does not distinguish True and 1.
            if value in seen:
                first = repr(seen[value])
                raise SpaceError(f"{value!r} is listed twice{'' if first == repr(value) else f' (as {first})'}")
            seen[value] = value
        put("values", listed)

    def check(self, value: object) -> Scalar:
        return self.values[self._index(value)]

    def draw(self, rng: "np.random.Generator") -> Scalar:
        return self.values[int(rng.random() * len(self.values))]

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

    Without an order, perturbing is a fresh uniform draw over all values, which may repeat the current value
    (Li et al. 2019, arXiv 1902.01894).

    Args:
        values: The values, distinct JSON scalars: str, int, float, bool or None. A single one is allowed.
        initial: The value of members at the start. None draws it; to start from the *value* None use
            `Space(initial=[...])`.
        default: As for `Float`.
        when: As for `Float`.
    """

    kind = "choice"

    def perturb(
        self, value: Scalar, factor: float, rng: "np.random.Generator", other: float | None = None
    ) -> tuple[Scalar, str]:
        """A fresh draw over all values, whatever the factor."""
        return self.draw(rng), "resampled"


@final
@dataclass(frozen=True, slots=True, repr=False)
class Ordinal(_Listed):
    """One of some values in order.

    Perturbing moves to the next value for a factor above 1, and to the previous one for a factor below 1; it stops
    at both ends (Li et al. 2019, arXiv 1902.01894).

    Args:
        values: The values in order, distinct JSON scalars: str, int, float, bool or None.
        initial: As for `Choice`.
        default: As for `Float`.
        when: As for `Float`.
    """

    kind = "ordinal"

    def perturb(
        self, value: Scalar, factor: float, rng: "np.random.Generator", other: float | None = None
    ) -> tuple[Scalar, str]:
        """The neighbour above or below, as the factor says."""
        up = factor > 1.0 if other is None else rng.random() < 0.5
        index = self._index(value) + (1 if up else -1)
        return self.values[min(max(index, 0), len(self.values) - 1)], "neighbour"

    def unit(self, value: object) -> float:
        """Where `value` lies between the first (0) and the last value (1), evenly spaced."""
        return self._index(value) / max(len(self.values) - 1, 1)

    def from_unit(self, u: float) -> Scalar:
        """The value nearest to the position `u` between the first (0) and the last value (1)."""
        return self.values[round(fraction(u) * (len(self.values) - 1))]
