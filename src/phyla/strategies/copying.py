"""What a member takes over from another: weights, hyperparameters, or both."""

from typing import Literal

from phyla.errors import ConfigurationError
from phyla.records import Scored

Copy = Literal["both", "weights", "hyperparameters"]


def check_copy(strategy: str, copy: object) -> None:
    """Refuse what says nothing about what is copied.

    Raises:
        ConfigurationError: names the strategy and the value.
    """
    if copy not in ("both", "weights", "hyperparameters"):
        raise ConfigurationError(f"{strategy}(copy={copy!r}): choose 'both', 'weights' or 'hyperparameters'")


def taken_over(head: Scored, donor: Scored, copy: Copy) -> tuple[Scored, Scored]:
    """Return whose weights a member goes on with, and whose hyperparameters."""
    return head if copy == "hyperparameters" else donor, head if copy == "weights" else donor
