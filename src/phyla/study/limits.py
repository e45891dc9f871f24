"""What a study keeps, and how often it tries again."""

from dataclasses import dataclass, fields
from typing import Any, final

from phyla.arguments import suggest_arguments
from phyla.errors import ConfigurationError
from phyla.machine.rules import MOST


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """Which checkpoints a study keeps besides those in use.

    Args:
        best: this many of the best ones.
        front: with a Pareto objective, at most this many of its front, in place of the best; the most crowded go.
        every_steps: also those whose step is a multiple of this; None keeps no milestones.

    Raises:
        ConfigurationError: a number is out of range.
    """

    best: int = 1
    front: int = 100
    every_steps: int | None = None

    def __post_init__(self) -> None:
        _check_counts(self)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """How often a study tries again before it gives up.

    Args:
        attempts: attempts of one trial that may fail before the trial counts as broken.
        broken: broken trials in a row, with none completed between, that stop the study; counted afresh when it
            is run again.
        stops: how often a stopping rule may stop a member within one generation; then its trial is left to run.

    Raises:
        ConfigurationError: a number is out of range.
    """

    attempts: int = 3
    broken: int = 10
    stops: int = 3

    def __post_init__(self) -> None:
        _check_counts(self)


def _check_counts(given: Retention | Retries) -> None:
    for field in fields(given):
        value: Any = getattr(given, field.name)
        if value is None and field.default is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST:
            raise ConfigurationError(
                f"{type(given).__name__}({field.name}={value!r}): must be an integer of at least 1, "
                f"at most {MOST:,}"
            )


suggest_arguments(Retention, Retries)
