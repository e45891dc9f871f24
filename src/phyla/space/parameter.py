"""Common base of the parameters of a search space."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields
from functools import partial
from numbers import Real
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from phyla.errors import SpaceError
from phyla.space.params import Scalar, When, as_when, run_check

if TYPE_CHECKING:
    import numpy as np

OPTIONS = ("log", "step", "initial", "default", "when")

Value = TypeVar("Value", bound=Scalar)


@dataclass(frozen=True, slots=True, repr=False)
class AnyParameter(ABC, Generic[Value]):
    """Common base of all parameters; see Float and Choice for the arguments."""

    _: KW_ONLY
    initial: Any = None
    default: Value | None = None
    when: When | None = field(default=None, hash=False)

    kind: ClassVar[str]

    def __post_init__(self) -> None:
        put, written = partial(object.__setattr__, self), repr(self)
        try:
            self._settle(put)
            if isinstance(self.initial, tuple | list):
                put("initial", self._initial_range(*self.initial))
            elif self.initial is not None:
                put("initial", run_check(self.check, self.initial, "initial"))
            if self.default is not None:
                put("default", run_check(self.check, self.default, "default"))
            put("when", as_when(self.when))
        except SpaceError as error:
            raise SpaceError(f"{written}: {error}") from None

    def __repr__(self) -> str:
        return self._call(*(getattr(self, attribute.name) for attribute in fields(self) if not attribute.kw_only))

    def _call(self, *positional: object, options: Sequence[str] = OPTIONS) -> str:
        """The constructor call of a parameter like this one, without options that have their default."""
        arguments = [repr(list(value) if isinstance(value, tuple) else value) for value in positional]
        defaults = {attribute.name: attribute.default for attribute in fields(self) if attribute.kw_only}
        arguments += [
            f"{name}={getattr(self, name)!r}"
            for name in options
            if name in defaults and getattr(self, name) != defaults[name]
        ]
        return f"{type(self).__name__}({', '.join(arguments)})"

    def start(self, rng: "np.random.Generator") -> Value:
        """A value to start from: the initial one, one from the initial range, or one from the prior."""
        return self.draw(rng) if self.initial is None else self.initial

    @abstractmethod
    def check(self, value: object) -> Value:
        """`value` as this parameter holds it: of its type, within the bounds, on the grid, as it is listed."""

    @abstractmethod
    def draw(self, rng: "np.random.Generator") -> Value:
        """A value from the prior."""

    @abstractmethod
    def perturb(
        self, value: Value, factor: float, rng: "np.random.Generator", other: float | None = None
    ) -> tuple[Value, str]:
        """`value` moved by `factor`, and how, as in "x1.2", "step", "neighbour", "resampled"; at an end it stays.

        With `other`, a factor below 1, it goes up by `factor` or down by this, by chance, and turns back at ends.
        """

    def clipped(self, value: Value, factor: float, rng: "np.random.Generator") -> tuple[Value, str]:
        """As `perturb`, but numbers are multiplied and clipped, whatever their range."""
        return self.perturb(value, factor, rng)

    @abstractmethod
    def _settle(self, put: Callable[[str, object], None]) -> None:
        """Check and convert the arguments."""

    def _initial_range(self, *bounds: object) -> object:
        return run_check(self.check, bounds, "initial")


def fraction(u: object) -> float:
    """Return a position clipped to the unit interval, if it lies slightly outside."""
    if not isinstance(u, Real) or math.isnan(u):
        raise SpaceError(f"a position in the unit interval must be a number, got {u!r}")
    return min(max(float(u), 0.0), 1.0)
