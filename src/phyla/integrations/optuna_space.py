"""Our parameters as Optuna's distributions, and values both ways."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from phyla.records import JsonObject
from phyla.space import Choice, Float, Int, Ordinal, Parameter, Scalar, Space

if TYPE_CHECKING:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
    from optuna.trial import Trial


def distribution(parameter: Parameter) -> "CategoricalDistribution | FloatDistribution | IntDistribution":
    """Return Optuna's distribution for what `writer` makes of the parameter's values.

    Listed values and steps of a Float are told by their place, since to Optuna True and 1 are the same, and
    its steps of floats collect rounding errors. Optuna has no steps on log scales; there it is told the
    position on the scale, which is rounded to a step when it is read.
    """
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(parameter, Choice):
        return CategoricalDistribution(list(range(len(parameter.values))))
    if isinstance(parameter, Ordinal):
        return IntDistribution(0, len(parameter.values) - 1)
    if _steps_on_log_scale(parameter):
        return FloatDistribution(0.0, 1.0)
    if isinstance(parameter, Int):
        return IntDistribution(parameter.low, parameter.high, log=parameter.log, step=parameter.step)
    if parameter.step is None:
        return FloatDistribution(parameter.low, parameter.high, log=parameter.log)
    return IntDistribution(0, _last(parameter, parameter.step))


def suggested(trial: "Trial", name: str, parameter: Parameter) -> Scalar:
    """Ask for one value of a parameter."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution

    told = distribution(parameter)
    if isinstance(told, CategoricalDistribution):
        return read(parameter, trial.suggest_categorical(name, told.choices))
    if isinstance(told, FloatDistribution):
        return read(parameter, trial.suggest_float(name, told.low, told.high, log=told.log))
    return read(parameter, trial.suggest_int(name, told.low, told.high, log=told.log, step=told.step))


def writer(parameter: Parameter) -> Callable[[Any], Any]:
    """Return what makes of a parameter's value what Optuna holds; the value was checked when it was chosen."""
    if isinstance(parameter, Choice | Ordinal):
        values = list(parameter.values)
        return lambda value: values.index(parameter.check(value))
    if _steps_on_log_scale(parameter):
        return parameter.unit
    if isinstance(parameter, Float) and parameter.step is not None:
        last = _last(parameter, parameter.step)
        return lambda value: round(parameter.unit(value) * last)
    return float if isinstance(parameter, Float) else int


def read(parameter: Parameter, value: Any) -> Scalar:
    """Return a value from how Optuna holds it."""
    if isinstance(parameter, Choice | Ordinal):
        listed: Scalar = parameter.values[value]
        return listed
    if _steps_on_log_scale(parameter):
        return parameter.from_unit(value)
    if isinstance(parameter, Float) and parameter.step is not None:
        return parameter.from_unit(value / _last(parameter, parameter.step))
    return parameter.check(value)


def anywhere(space: Space) -> JsonObject:
    """Return some value for every parameter, active or not."""
    return {
        name: parameter.values[0] if isinstance(parameter, Choice | Ordinal) else parameter.low
        for name, parameter in space.parameters.items()
    }


def _last(parameter: Float, step: float) -> int:
    return round((parameter.high - parameter.low) / step)


def _steps_on_log_scale(parameter: Float | Int) -> bool:
    return parameter.log and parameter.step not in (None, 1 if isinstance(parameter, Int) else None)
