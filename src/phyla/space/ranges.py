"""Float and Int: which numbers there are, how they are drawn, and how they are moved.

Stepped numbers are handled by their index on the grid `low + index * step`, so that integers stay exact at any
size and floats do not collect rounding errors along a chain of moves.
"""

import math
import sys
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias, TypeVar, cast, final

from phyla.errors import SpaceError
from phyla.space.parameter import AnyParameter, fraction
from phyla.space.params import as_integer, as_real

if TYPE_CHECKING:
    import numpy as np

NEAR_ZERO = 1e-12
"""Below this share of its range a linear float counts as 0: multiplying would take forever to leave it."""

NEAR_ONE: Literal["1-x"] = "1-x"
"""The log scale of values near 1, such as a discount: logarithmic in the distance from 1."""

LARGEST_INTEGER = 2**63 - 1
"""What databases and other languages can hold."""

Number = TypeVar("Number", bound=float)
Log: TypeAlias = bool | Literal["1-x"]


@dataclass(frozen=True, slots=True, repr=False)
class _Range(AnyParameter[Number]):
    """What Float and Int have in common."""

    low: Number
    high: Number
    _: KW_ONLY
    log: Log = False
    step: Number | None = None

    _slack: ClassVar[float]
    """The share of a step that a value may be off the grid."""

    def _settle(self, put: Callable[[str, object], None]) -> None:
        put("low", self._convert(self.low, "low"))
        put("high", self._convert(self.high, "high"))
        if self.step is not None:
            put("step", self._convert(self.step, "step"))
        low, high, step = self.low, self.high, self.step
        like = partial(self._call, options=("log", "step"))
        if not isinstance(self.log, bool) and self.log != NEAR_ONE:
            raise SpaceError(f"log must be True or False, or {NEAR_ONE!r} for what is near 1, got {self.log!r}")
        if low > high:
            raise SpaceError(f"low must be below high; did you mean {like(high, low)}?")
        if low == high:
            raise SpaceError(f"low must be below high; leave out what never changes, or write Choice([{low!r}])")
        if self.log is True and low <= 0:
            raise SpaceError(f"a log scale needs low above 0, got {low!r}; raise low or leave out log=True")
        if self.log == NEAR_ONE and (self.kind == "int" or step is not None):
            raise SpaceError(f"log={NEAR_ONE!r} is for a Float without steps; leave it out")
        if self.log == NEAR_ONE and high >= 1:
            raise SpaceError(f"log={NEAR_ONE!r} needs high below 1, got {high!r}; lower high or leave out log")
        self._check_size()
        if step is None:
            return
        if step <= 0:
            raise SpaceError("step must be above 0")
        if isinstance(step, float) and (high - low) / step > sys.maxsize:
            raise SpaceError("step is too small for the range; leave it out")
        whole = self._last
        if whole < 1 or abs(high - low - whole * step) > self._slack * step:
            steps = int((high - low) // step)
            ends = [round(low + count * step, 12) for count in (steps, steps + 1) if count > 0]
            fitting = " or ".join(like(low, end) for end in ends)
            raise SpaceError(f"high must be low plus a whole number of steps of {step!r}; did you mean {fitting}?")

    def _initial_range(self, *bounds: object) -> tuple[Number, Number]:
        if len(bounds) != 2:
            raise SpaceError(f"an initial range is (low, high), got {bounds!r}")
        low = self._convert(bounds[0], "low of the initial range")
        high = self._convert(bounds[1], "high of the initial range")
        if low >= high:
            raise SpaceError(f"the initial range {(low, high)!r} must have its low below its high")
        if low < self.low or high > self.high:
            raise SpaceError(
                f"the initial range {(low, high)!r} is outside of the bounds {(self.low, self.high)!r}; narrow it"
            )
        if self.step is not None:
            self._span(low, high)
        return low, high

    def check(self, value: object) -> Number:
        number = self._convert(value, f"the value of this {type(self).__name__}")
        if not self.low <= number <= self.high:
            bound = self.low if number < self.low else self.high
            raise SpaceError(f"{value!r} is outside of {[self.low, self.high]!r}; the nearest value is {bound!r}")
        nearest: Number = self._nearest(number)
        if abs(nearest - number) > self._slack * (self.step or 1):
            steps = f"the steps of {self.step!r} from {self.low!r}"
            raise SpaceError(f"{value!r} is between {steps}; the nearest value is {nearest!r}")
        return nearest

    def draw(self, rng: "np.random.Generator") -> Number:
        return cast("Number", self._draw_between(rng.random(), self.low, self.high))

    def start(self, rng: "np.random.Generator") -> Number:
        if self.initial is not None and not isinstance(self.initial, tuple):
            return cast("Number", self.initial)
        return cast("Number", self._draw_between(rng.random(), *(self.initial or (self.low, self.high))))

    def unit(self, value: object) -> float:
        """Where `value` lies between low (0) and high (1), on a log scale if the parameter has one."""
        number = self.check(value)
        start, end = _place(self.low, self.log), _place(self.high, self.log)
        # Neighbouring numbers may have the same logarithm; a straight line is as good between them.
        if start < end:
            return fraction((_place(number, self.log) - start) / (end - start))
        return fraction((number - self.low) / (self.high - self.low))

    def from_unit(self, u: float) -> Number:
        """The value nearest to the position `u` between low (0) and high (1); the inverse of `unit`."""
        u = fraction(u)
        value: Number = self.high if u == 1.0 else self._nearest(self._between(u, self.low, self.high))
        return value

    def perturb(
        self, value: Number, factor: float, rng: "np.random.Generator", other: float | None = None
    ) -> tuple[Number, str]:
        log, start, end = self._scale(value)
        here, exact = _place(value, log), bool(log) and end - start >= 1.0
        if other is not None and rng.random() >= self._chance(value, factor, 1.0 / other, exact):
            factor, other = other, factor
        way, vary = math.log(factor), 0.5 + rng.random()
        if other is not None and self.step is not None and not exact:
            way = math.copysign((abs(way) + abs(math.log(other))) / 2, way)  # as far up as down
        size = way if exact else min(max(way / 2, -0.5), 0.5) * (end - start) * vary
        turned = other is not None and not start <= here + size <= end
        if turned:  # by varying sizes, since the same one again and again would meet few values
            moved = _number(_mirror(here + (size * vary if exact else size), start, end), log)
        else:
            moved = value * factor if exact and log is True else _number(here + size, log)
        near = self._round_step(min(max(moved, self.low), self.high), rng)
        if self.step is not None and not turned:
            index, least = self._index(near), self._index(value) + (1 if way > 0 else -1)
            if index < least if way > 0 else index > least:
                return self._at(min(max(least, 0), self._last)), "step"
        if exact and not turned:
            return near, f"x{factor:g}" if log is True else f"1 - x, x{1 / factor:g}"
        if log:
            return near, f"x{near / value:.4g}" if log is True else f"1 - x, x{(1 - near) / (1 - value):.4g}"
        return near, f"{100.0 * (near - value) / (self.high - self.low):+.3g}% of the range"

    def _scale(self, value: Number) -> tuple[Log, float, float]:
        """The scale that a value moves on, and the ends of the range there."""
        half = (self.step or 0) / 2  # each value of a grid stands for its surroundings
        low, high, log = self.low - half, self.high + half, self.log
        if not log and self.low >= 0 and high >= math.e * low:
            log = bool(half) or value > NEAR_ZERO * (high - low)  # no factor leads away from 0, but a step does
        return log, _place(max(low, self.low / 2) if log is True else low, log), _place(high, log)

    def _chance(self, value: Number, up: float, down: float, exact: bool) -> float:
        """The probability of going up by one factor rather than down by the other, so that no part is preferred.

        On a log scale the mean step is 0. On a linear one factors lead up more often: there is more room above.
        """
        if self.step is not None and (not exact or value * (up - 1.0) <= self.step):
            return 0.5  # both ways are as far
        if exact and not self.log:
            return (down - 1.0) / (down - 1.0 / up)
        return math.log(down) / (math.log(up) + math.log(down))

    def clipped(self, value: Number, factor: float, rng: "np.random.Generator") -> tuple[Number, str]:
        target, by, up = value * factor, f"x{factor:g}", (factor > 1.0) == (value >= 0)
        if self.kind == "float" and not self.log and abs(value) <= NEAR_ZERO * (self.high - self.low):
            target, by, up = value + min(factor - 1.0, 1.0) * (self.high - self.low) / 2.0, "step", factor > 1.0
        moved: Any = min(max(target, self.low), self.high)
        if self.step is None:
            return moved, by
        index, least = self._index(moved), self._index(value) + (1 if up else -1)
        if index < least if up else index > least:
            index, by = min(max(least, 0), self._last), "step"
        return self._at(index), by

    @abstractmethod
    def _convert(self, value: object, what: str) -> Number: ...

    @abstractmethod
    def _check_size(self) -> None: ...

    def _draw_between(self, u: float, low: Number, high: Number) -> Any:
        """The value that `u` in [0, 1) stands for between two numbers, by the prior.

        On a log scale the cell `[x, x + step)` belongs to its left end x, so that x has the prior mass
        `log(1 + step / x)`: the floor of a log-uniform real number, which needs no cell below `low`.
        """
        step = self.step
        if step is None:
            return self._between(u, low, high)
        first, last = self._span(low, high)
        index = first + int(u * (last - first + 1))
        if self.log:
            start, end = math.log(self.low + first * step), math.log(self.low + (last + 1) * step)
            index = int((math.exp(start + u * (end - start)) - self.low) / step)
        return self._at(min(max(index, first), last))

    def _between(self, u: float, low: Number, high: Number) -> Any:
        start, end = _place(low, self.log), _place(high, self.log)
        return min(max(_number(start + u * (end - start), self.log), low), high)

    def _nearest(self, number: Any) -> Any:
        return number if self.step is None else self._at(self._index(number))

    def _round_step(self, number: Any, rng: "np.random.Generator") -> Any:
        """The step below a number, or that above with a probability that grows with the distance.

        The nearest one would be the same for all factors, and leave out numbers that no product comes near.
        """
        if self.step is None:
            return number
        below, rest = divmod(number - self.low, self.step)
        return self._at(min(int(below) + (rest > 0 and rng.random() < rest / self.step), self._last))

    def _count(self, distance: float) -> int:
        """The number of steps nearest to a distance; exact for integers of any size."""
        step = self.step or 1
        whole, rest = divmod(distance, step)
        return round(distance / step) if rest else int(whole)

    @property
    def _last(self) -> int:
        return self._count(self.high - self.low)

    def _index(self, number: Number) -> int:
        return min(max(self._count(number - self.low), 0), self._last)

    def _at(self, index: int) -> Any:
        step = self.step or 1
        digits = max(_decimals(self.low), _decimals(step))
        return self.high if index == self._last else round(self.low + index * step, digits)

    def _span(self, low: Number, high: Number) -> tuple[int, int]:
        slack = self._slack * (self.step or 1)
        first, last = self._index(low), self._index(high)
        first += low - self._at(first) > slack
        last -= self._at(last) - high > slack
        if first > last:
            raise SpaceError(f"no step lies in the initial range {(low, high)!r}; widen it")
        return first, last


@final
@dataclass(frozen=True, slots=True, repr=False)
class Float(_Range[float]):
    """A real number between two bounds, both included.

    Perturbing multiplies by the factor; with `log="1-x"` it divides the distance from 1. Where `high / low` is
    below e, and where `low` is below 0, it moves by a share of the range: a tenth or so for 1.2.

    Source: Jaderberg et al. 2017, arXiv 1711.09846, section 4.

    Args:
        low: The lower bound.
        high: The upper bound.
        log: Whether the prior is log-uniform; the default is uniform. "1-x" is logarithmic in the distance from 1,
            for what is near it, such as `Float(0.9, 0.9999, log="1-x")`.
        step: Only the values `low + k * step`; `high` must be one of them. A perturbed value moves by at least
            one step, unless a bound holds it.
        initial: Where members start: a value, or a narrower `(low, high)` to draw it from.
        default: The value of trials that ran before this parameter was added to the study; None for none.
        when: Names of other parameters and the values they must have for this one to be active.
    """

    kind = "float"
    _slack = 1e-6

    def _convert(self, value: object, what: str) -> float:
        return as_real(value, what)

    def _check_size(self) -> None:
        if self.log is True and self.low < sys.float_info.min:
            raise SpaceError(f"low is too close to 0 for a log scale; take at least {sys.float_info.min!r}")
        if not math.isfinite(8.0 * max(-self.low, self.high)):
            raise SpaceError("the range is wider than a float can hold, or nearly; narrow it")


@final
@dataclass(frozen=True, slots=True, repr=False)
class Int(_Range[int]):
    """A whole number between two bounds, both included.

    Perturbing moves it as a `Float` and rounds up or down by chance, by at least one step in the direction in
    which the factor pushes, unless a bound holds it.

    Args:
        low: The lower bound.
        high: The upper bound.
        log: Whether the prior is log-uniform.
        step: Only the values `low + k * step`; `high` must be one of them.
        initial: As for `Float`.
        default: As for `Float`.
        when: As for `Float`.
    """

    step: int = field(default=1, kw_only=True)

    kind = "int"
    _slack = 0.0

    def _convert(self, value: object, what: str) -> int:
        return as_integer(value, what)

    def _check_size(self) -> None:
        as_integer(self.step, "step")
        if max(abs(self.low), abs(self.high)) > LARGEST_INTEGER:
            raise SpaceError("the bounds must fit in 64 bits")


def _decimals(number: float) -> int:
    exponent = Decimal(repr(number)).as_tuple().exponent
    return max(-exponent, 0) if isinstance(exponent, int) else 0


def _place(number: float, log: Log) -> float:
    """Where a number lies on a scale; 0 may be the end of a log scale."""
    if log == NEAR_ONE:
        return -math.log(1.0 - number)
    return (math.log(number) if number > 0 else -math.inf) if log else number


def _number(place: float, log: Log) -> float:
    return 1.0 - math.exp(min(-place, 700.0)) if log == NEAR_ONE else math.exp(place) if log else place


def _mirror(place: float, start: float, end: float) -> float:
    """A place beyond the ends, as far inside."""
    if math.isinf(start):
        return 2.0 * end - place
    beyond = (place - start) % (2.0 * (end - start))
    return start + min(beyond, 2.0 * (end - start) - beyond)
