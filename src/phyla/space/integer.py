"""Int: a whole number between two bounds."""

import math
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, ClassVar, final

from phyla.errors import SpaceError
from phyla.space import bounds, grid
from phyla.space.scalars import When, as_integer, as_when, call, fraction

if TYPE_CHECKING:
    import numpy as np

LARGEST_INTEGER = 2**63 - 1
"""What databases and other languages can hold."""


@final
@dataclass(frozen=True, slots=True, repr=False)
class Int:
    """A whole number between two bounds, both included.

    Perturbing multiplies by the factor, rounds and clamps into the bounds, and moves by one step at least in
    the direction in which the factor pushes, unless a bound holds it. From 0 it moves by one step: up for a
    factor above 1, else down.

    Args:
        low: The lower bound.
        high: The upper bound.
        log: Whether the prior is log-uniform; the default is uniform.
        step: Only the values `low + k * step`; `high` must be one of them.
        initial: Where members start: a value, or a narrower `(low, high)` to draw it from.
        default: The value of trials from before a study that exists was given this parameter; it may be left
            out of values that are validated. None means that there is none.
        when: Names of other parameters and the values they must have for this one to be active.

    Raises:
        SpaceError: the arguments make no sense together; the message shows them.

    Source:
        Jaderberg et al. 2017, arXiv 1711.09846, section 4 (perturb).
    """

    low: int
    high: int
    _: KW_ONLY
    log: bool = False
    step: int = 1
    initial: int | tuple[int, int] | None = None
    default: int | None = None
    when: When | None = field(default=None, hash=False)

    kind: ClassVar[str] = "int"

    def __post_init__(self) -> None:
        try:
            self._settle()
        except SpaceError as error:
            raise SpaceError(f"{self!r}: {error}") from None

    def _settle(self) -> None:
        low, high = as_integer(self.low, "low"), as_integer(self.high, "high")
        step = as_integer(self.step, "step")
        bounds.check("Int", low, high, self.log, {"log": self.log or None, "step": None if step == 1 else step})
        if max(abs(low), abs(high)) > LARGEST_INTEGER:
            raise SpaceError("the bounds must fit in 64 bits")
        if step <= 0:
            raise SpaceError("step must be above 0")
        if (high - low) % step:
            raise bounds.misfit("Int", low, high, step, (high - low) // step, log=self.log)
        put = object.__setattr__
        put(self, "low", low)
        put(self, "high", high)
        put(self, "step", step)
        initial: object = self.initial
        if isinstance(initial, tuple | list):
            first, final_ = bounds.pair(initial, as_integer)
            bounds.check_inside(low, first, final_, high)
            put(self, "initial", (first, final_))
            self._indices((first, final_))
        elif initial is not None:
            put(self, "initial", bounds.starting(self.check, initial))
        if self.default is not None:
            put(self, "default", bounds.starting(self.check, self.default, "default"))
        put(self, "when", as_when(self.when))

    def __repr__(self) -> str:
        step = None if self.step == 1 else self.step
        options = {
            "log": self.log or None,
            "step": step,
            "initial": self.initial,
            "default": self.default,
            "when": self.when,
        }
        return call("Int", (self.low, self.high), options)

    def check(self, value: object) -> int:
        """`value` as this parameter holds it: an int in the bounds and on the grid.

        Raises:
            SpaceError: it is none of its values.
        """
        number = value if type(value) is int else as_integer(value, "an Int")
        if not self.low <= number <= self.high:
            nearest = self.low if number < self.low else self.high
            raise SpaceError(
                f"{value!r} is outside of {[self.low, self.high]!r}; the nearest value is {nearest!r}"
            )
        if (number - self.low) % self.step:
            nearest = self.low + round((number - self.low) / self.step) * self.step
            raise SpaceError(
                f"{value!r} is between the steps of {self.step!r} from {self.low!r}; "
                f"the nearest value is {nearest!r}"
            )
        return number

    def draw(self, rng: "np.random.Generator") -> int:
        """A value from the prior: uniform or log-uniform."""
        return self._drawn(rng.random(), 0, (self.high - self.low) // self.step)

    def start(self, rng: "np.random.Generator") -> int:
        """A value to start from: the initial one, one from the initial range, or one from the prior."""
        if self.initial is None:
            return self.draw(rng)
        if isinstance(self.initial, tuple):
            return self._drawn(rng.random(), *self._indices(self.initial))
        return self.initial

    def perturb(self, value: int, factor: float, rng: "np.random.Generator") -> tuple[int, str]:
        """`value` moved by `factor`, and how it moved: "x1.2", or "step" where rounding would undo that."""
        target = min(max(value * factor, self.low), self.high)
        last = (self.high - self.low) // self.step
        up = (factor > 1.0) == (value >= 0)
        index, least = grid.moved(
            (value - self.low) // self.step, round((target - self.low) / self.step), last, up=up
        )
        return self.low + index * self.step, "step" if least else f"x{factor:g}"

    def unit(self, value: object) -> float:
        """Where `value` lies between low (0) and high (1), on a log scale if the parameter has one.

        Raises:
            SpaceError: it is none of its values.
        """
        return bounds.position(self.check(value), self.low, self.high, log=self.log)

    def from_unit(self, u: float) -> int:
        """The value nearest to the position `u` between low (0) and high (1).

        Raises:
            SpaceError: `u` is not a number.
        """
        u = fraction(u)
        last = (self.high - self.low) // self.step
        if self.log:
            start = math.log(self.low)
            index = round((math.exp(start + u * (math.log(self.high) - start)) - self.low) / self.step)
        else:
            index = round(u * last)
        return self.low + min(max(index, 0), last) * self.step

    def _drawn(self, u: float, first: int, last: int) -> int:
        index = grid.drawn(u, first, last, low=self.low, step=self.step, log=self.log)
        return self.low + index * self.step

    def _indices(self, limits: tuple[int, int]) -> tuple[int, int]:
        first = -((self.low - limits[0]) // self.step)
        last = (limits[1] - self.low) // self.step
        if first > last:
            raise SpaceError(f"no step lies in the initial range {limits!r}; widen it")
        return first, last
