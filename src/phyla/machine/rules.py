"""What a study's decisions go by."""

from dataclasses import dataclass
from typing import final

from phyla.errors import ConfigurationError
from phyla.population import Strategy
from phyla.records import Objective
from phyla.space import Space


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Everything about a study that is not a fact in its store.

    Args:
        space: the search space.
        objective: what is maximised or minimised.
        strategy: decides what members do next.
        lease_s: seconds a claim lasts unless renewed.
        max_attempts: attempts of one trial that may fail before it is quarantined.
        max_claims: claims of one trial, preempted ones included, before it is quarantined.
        max_broken: quarantined trials in a row, with no completed one between, that stop the study.
        keep_best: best checkpoints that are kept besides those in use.
        keep_every_steps: also keep checkpoints whose step is a multiple of this; None keeps no milestones.

    Raises:
        ConfigurationError: a number is out of range.
    """

    space: Space
    objective: Objective
    strategy: Strategy
    lease_s: float = 60.0
    max_attempts: int = 3
    max_claims: int = 30
    max_broken: int = 10
    keep_best: int = 1
    keep_every_steps: int | None = None

    def __post_init__(self) -> None:
        for name in ("lease_s", "max_attempts", "max_claims", "max_broken", "keep_best"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or value <= 0:
                raise ConfigurationError(f"{name}={value!r}: must be above 0")
        if self.keep_every_steps is not None and self.keep_every_steps < 1:
            raise ConfigurationError(f"keep_every_steps={self.keep_every_steps!r}: must be at least 1 step")
