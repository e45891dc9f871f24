"""Which changes a space can take when values of it are in use."""

import math
from collections.abc import Iterator, Mapping

from phyla.errors import SpaceError
from phyla.space.conditions import Parameter, conditions
from phyla.space.discrete import Choice, Ordinal
from phyla.space.integer import Int
from phyla.space.real import Float
from phyla.space.scalars import is_same


def check_extension(old: Mapping[str, Parameter], new: Mapping[str, Parameter]) -> None:
    """Refuse parameters in which values of the old ones may not be valid.

    Bounds may be widened, values added, and parameters added that have a default. Where members start may change.

    Args:
        old: parameters by full name, as a space has them.
        new: what they are to become.

    Raises:
        SpaceError: names everything that is narrowed, removed, or changed otherwise, with old and new values.
    """
    problems = list(_problems(old, new))
    if problems:
        raise SpaceError(
            "the space of a study that exists can only be widened: "
            + "; ".join(problems)
            + ". Values that trials "
            "have used must stay valid."
        )


def _problems(old: Mapping[str, Parameter], new: Mapping[str, Parameter]) -> Iterator[str]:
    for name, before in old.items():
        if name not in new:
            yield f"{name} is gone"
        else:
            for problem in _narrowed(before, new[name]):
                yield f"{name}: {problem}"
    for name, parameter in new.items():
        if name not in old and parameter.default is None:
            yield f"{name} is new and has no default: give the value that earlier trials had, as in default=..."


def _narrowed(old: Parameter, new: Parameter) -> Iterator[str]:
    if conditions(old) != conditions(new):
        yield f"when was {old.when!r}, now {new.when!r}"
    if isinstance(old, Float) and isinstance(new, Float):
        yield from _bounds(old, new)
        if not _float_grid(old, new):
            yield f"step was {old.step!r} from {old.low!r}, now {new.step!r} from {new.low!r}"
    elif isinstance(old, Int) and isinstance(new, Int):
        yield from _bounds(old, new)
        if old.step % new.step or (old.low - new.low) % new.step:
            yield f"step was {old.step!r} from {old.low!r}, now {new.step!r} from {new.low!r}"
    elif isinstance(old, Choice) and isinstance(new, Choice):
        missing = [value for value in old.values if not any(is_same(value, other) for other in new.values)]
        if missing:
            yield f"the values {missing!r} are gone"
    elif isinstance(old, Ordinal) and isinstance(new, Ordinal):
        # In the old order, with new ones between.
        kept = [value for value in new.values if any(is_same(value, other) for other in old.values)]
        if len(kept) < len(old.values) or not all(map(is_same, kept, old.values)):
            yield f"the values were {list(old.values)!r}, now {list(new.values)!r}"
    else:
        yield f"it was {old!r}, now {new!r}"


def _bounds(old: Float | Int, new: Float | Int) -> Iterator[str]:
    if new.low > old.low:
        yield f"low was {old.low!r}, now {new.low!r}"
    if new.high < old.high:
        yield f"high was {old.high!r}, now {new.high!r}"
    if new.log != old.log:
        yield f"log was {old.log!r}, now {new.log!r}"


def _float_grid(old: Float, new: Float) -> bool:
    """Whether every value of the old grid is one of the new."""
    if new.step is None:
        return True
    if old.step is None:
        return False
    ratios = (old.step / new.step, (old.low - new.low) / new.step)
    return all(math.isclose(ratio, round(ratio), abs_tol=1e-6) for ratio in ratios)
