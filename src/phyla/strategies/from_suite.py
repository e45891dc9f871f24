"""Fitness from a suite instead of from what training reports."""

from dataclasses import dataclass
from typing import final

from phyla.errors import ConfigurationError


@final
@dataclass(frozen=True, slots=True)
class FromSuite:
    """The fitness of a trial is an aggregate of a suite, evaluated on the checkpoint that it left.

    Members keep training while evaluation lags behind; an exploit takes over the checkpoint that was
    evaluated, with the hyperparameters of the trial that wrote it.

    Args:
        suite: name of one of the study's suites.
        metric: name of the aggregate; the study's objective says whether more is better. None takes the aggregates
            that the objective names, one or several.
        max_lag: checkpoints of one member that may wait for their evaluation while it trains on; with more,
            the member waits.
        remeasure: how many more times, each with other seeds, a donor's checkpoint is evaluated before it is
            copied; its fitness is then the mean.
        max_partial: groups in a row that end partial before the study stops with an error.

    Raises:
        ConfigurationError: a number is out of range.
    """

    suite: str
    metric: str | None = None
    max_lag: int = 2
    remeasure: int = 0
    max_partial: int = 5

    def __post_init__(self) -> None:
        for name, least in (("max_lag", 0), ("remeasure", 0), ("max_partial", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ConfigurationError(f"FromSuite({name}={value!r}): must be an integer of at least {least}")
