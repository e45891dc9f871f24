"""Our parameters as Optuna's distributions, and values both ways."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from phyla.records import JsonObject
from phyla.space import Choice, Int, Ordinal, Parameter, Scalar, Space

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import Trial


class View(NamedTuple):
    """How Optuna sees a parameter: its distribution, and what makes its values of ours, and ours of its."""

    distribution: "BaseDistribution"
    write: Callable[[Any], Any]
    read: Callable[[Any], Scalar]


def view(parameter: Parameter) -> View:
    """Return how Optuna sees a parameter.

    Listed values and steps of a Float are told by their place, since to Optuna True and 1 are the same, and
    its steps of floats collect rounding errors. Optuna has no steps on log scales; there it is told the
    position on the scale, which is rounded to a step when it is read.
    """
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(parameter, Choice | Ordinal):
        values = list(parameter.values)
        choice = isinstance(parameter, Choice)
        places = CategoricalDistribution(range(len(values))) if choice else IntDistribution(0, len(values) - 1)
        return View(places, lambda value: values.index(parameter.check(value)), values.__getitem__)
    log, step = parameter.log, parameter.step
    if log and step not in (None, 1 if isinstance(parameter, Int) else None):
        return View(FloatDistribution(0.0, 1.0), parameter.unit, parameter.from_unit)
    if isinstance(parameter, Int):
        told = IntDistribution(parameter.low, parameter.high, log=log, step=parameter.step)
        return View(told, int, parameter.check)
    if step is None:
        return View(FloatDistribution(parameter.low, parameter.high, log=log), float, parameter.check)
    last = round((parameter.high - parameter.low) / step)
    return View(
        IntDistribution(0, last),
        lambda value: round(parameter.unit(value) * last),
        lambda value: parameter.from_unit(value / last),
    )


def suggested(trial: "Trial", name: str, parameter: Parameter) -> Scalar:
    """Ask for one value of a parameter."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    told, _, read = view(parameter)
    if isinstance(told, CategoricalDistribution):
        return read(trial.suggest_categorical(name, told.choices))
    if isinstance(told, FloatDistribution):
        return read(trial.suggest_float(name, told.low, told.high, log=told.log))
    assert isinstance(told, IntDistribution)
    return read(trial.suggest_int(name, told.low, told.high, log=told.log, step=told.step))


def anywhere(space: Space) -> JsonObject:
    """Return some value for every parameter, active or not."""
    return {
        name: parameter.values[0] if isinstance(parameter, Choice | Ordinal) else parameter.low
        for name, parameter in space.parameters.items()
    }
