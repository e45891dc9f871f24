"""Float: a real number between two bounds."""

import math
import sys
from dataclasses import KW_ONLY, dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, ClassVar, final

from phyla.errors import SpaceError
from phyla.space import bounds, grid
from phyla.space.scalars import When, as_real, as_when, call, fraction

if TYPE_CHECKING:
    import numpy as np

NEAR_ZERO = 1e-12
"""Below this share of its range a linear float counts as 0: multiplying would take forever to leave it."""


@final
@dataclass(frozen=True, slots=True, repr=False)
class Float:
    """A real number between two bounds, both included.

    Perturbing multiplies by the factor and clamps into the bounds. It clamps, and does not reflect, so that a
    best value at a bound can be held and a factor above 1 never makes a value smaller. A linear float whose
    value is 0 (or less than 1e-12 of the range away from it) cannot be moved by a factor: it moves by
    `(factor - 1) / 2` of the range instead, half the range at most.

    Args:
        low: The lower bound.
        high: The upper bound.
        log: Whether the prior is log-uniform; the default is uniform.
        step: Only the values `low + k * step`; `high` must be one of them. A perturbed value moves by one
            step at least, unless a bound holds it.
        initial: Where members start: a value, or a narrower `(low, high)` to draw it from.
        default: The value of trials from before a study that exists was given this parameter; it may be left
            out of values that are validated. None means that there is none.
        when: Names of other parameters and the values they must have for this one to be active.

    Raises:
        SpaceError: the arguments make no sense together; the message shows them.

    Source:
        Jaderberg et al. 2017, arXiv 1711.09846, section 4 (perturb); Li et al. 2019, arXiv 1902.01894.
    """

    low: float
    high: float
    _: KW_ONLY
    log: bool = False
    step: float | None = None
    initial: float | tuple[float, float] | None = None
    default: float | None = None
    when: When | None = field(default=None, hash=False)
    _last: int = field(default=0, init=False, compare=False)
    _digits: int = field(default=0, init=False, compare=False)

    kind: ClassVar[str] = "float"

    def __post_init__(self) -> None:
        try:
            self._settle()
        except SpaceError as error:
            raise SpaceError(f"{self!r}: {error}") from None

    def _settle(self) -> None:
        low, high = as_real(self.low, "low"), as_real(self.high, "high")
        bounds.check("Float", low, high, self.log, {"log": self.log or None, "step": self.step})
        if self.log and low < sys.float_info.min:
            raise SpaceError(f"low is too close to 0 for a log scale; take at least {sys.float_info.min!r}")
        if not math.isfinite(high - low):
            raise SpaceError("the range is wider than a float can hold; narrow it")
        put = object.__setattr__
        put(self, "low", low)
        put(self, "high", high)
        if self.step is not None:
            step = as_real(self.step, "step")
            if step <= 0:
                raise SpaceError("step must be above 0")
            if (high - low) / step > sys.maxsize:
                raise SpaceError("step is too small for the range; leave it out")
            last = round((high - low) / step)
            if last < 1 or abs((high - low) / step - last) > 1e-6:
                raise bounds.misfit("Float", low, high, step, math.floor((high - low) / step), log=self.log)
            put(self, "step", step)
            put(self, "_last", last)
            put(self, "_digits", max(_decimals(low), _decimals(step)))
        initial: object = self.initial
        if isinstance(initial, tuple | list):
            first, final_ = bounds.pair(initial, as_real)
            bounds.check_inside(low, first, final_, high)
            put(self, "initial", (first, final_))
            if self.step is not None:
                self._indices((first, final_))
        elif initial is not None:
            put(self, "initial", bounds.starting(self.check, initial))
        if self.default is not None:
            put(self, "default", bounds.starting(self.check, self.default, "default"))
        put(self, "when", as_when(self.when))

    def __repr__(self) -> str:
        options = {
            "log": self.log or None,
            "step": self.step,
            "initial": self.initial,
            "default": self.default,
            "when": self.when,
        }
        return call("Float", (self.low, self.high), options)

    def check(self, value: object) -> float:
        """`value` as this parameter holds it: a float in the bounds and, with a step, on the grid.

        Raises:
            SpaceError: it is none of its values.
        """
        number = value if type(value) is float else as_real(value, "a Float")
        if not self.low <= number <= self.high:
            nearest = self.low if number < self.low else self.high
            raise SpaceError(
                f"{value!r} is outside of {[self.low, self.high]!r}; the nearest value is {nearest!r}"
            )
        if self.step is None:
            return number
        nearest = self._at(self._index(number))
        if abs(nearest - number) > 1e-6 * self.step:
            raise SpaceError(
                f"{value!r} is between the steps of {self.step!r} from {self.low!r}; "
                f"the nearest value is {nearest!r}"
            )
        return nearest

    def draw(self, rng: "np.random.Generator") -> float:
        """A value from the prior: uniform or log-uniform."""
        return self._drawn(rng.random(), self.low, self.high)

    def start(self, rng: "np.random.Generator") -> float:
        """A value to start from: the initial one, one from the initial range, or one from the prior."""
        if self.initial is None:
            return self.draw(rng)
        if isinstance(self.initial, tuple):
            return self._drawn(rng.random(), *self.initial)
        return self.initial

    def perturb(self, value: float, factor: float, rng: "np.random.Generator") -> tuple[float, str]:
        """`value` moved by `factor`, and how it moved: "x1.2", or "step" where that moves nothing."""
        target, by = value * factor, f"x{factor:g}"
        if not self.log and abs(value) <= NEAR_ZERO * (self.high - self.low):
            target, by = value + min(factor - 1.0, 1.0) * (self.high - self.low) / 2.0, "step"
        up = target > value
        target = min(max(target, self.low), self.high)
        if self.step is None:
            return target, by
        index, least = grid.moved(self._index(value), self._index(target), self._last, up=up)
        return self._at(index), "step" if least else by

    def unit(self, value: object) -> float:
        """Where `value` lies between low (0) and high (1), on a log scale if the parameter has one.

        Raises:
            SpaceError: it is none of its values.
        """
        return bounds.position(self.check(value), self.low, self.high, log=self.log)

    def from_unit(self, u: float) -> float:
        """The value at the position `u` between low (0) and high (1); the inverse of `unit`.

        Raises:
            SpaceError: `u` is not a number.
        """
        u = fraction(u)
        if u == 1.0:
            return self.high
        value = self._between(u, self.low, self.high)
        return value if self.step is None else self._at(self._index(value))

    def _drawn(self, u: float, low: float, high: float) -> float:
        if self.step is None:
            return self._between(u, low, high)
        first, last = self._indices((low, high))
        return self._at(grid.drawn(u, first, last, low=self.low, step=self.step, log=self.log))

    def _between(self, u: float, low: float, high: float) -> float:
        if self.log:
            start = math.log(low)
            value = math.exp(start + u * (math.log(high) - start))
        else:
            value = low + u * (high - low)
        return min(max(value, low), high)

    def _index(self, value: float) -> int:
        step = self.step or 1.0
        return min(max(round((value - self.low) / step), 0), self._last)

    def _at(self, index: int) -> float:
        step = self.step or 1.0
        if index == self._last:
            return self.high
        return round(self.low + index * step, self._digits)

    def _indices(self, limits: tuple[float, float]) -> tuple[int, int]:
        step = self.step or 1.0
        first = math.ceil((limits[0] - self.low) / step - 1e-6)
        last = math.floor((limits[1] - self.low) / step + 1e-6)
        if first > last:
            raise SpaceError(f"no step lies in the initial range {limits!r}; widen it")
        return first, last


def _decimals(number: float) -> int:
    exponent = Decimal(repr(number)).as_tuple().exponent
    return max(-exponent, 0) if isinstance(exponent, int) else 0
