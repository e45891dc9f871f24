"""Stopping by a function of one's own."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias, final

import numpy as np

from phyla.errors import ConfigurationError
from phyla.records import JsonObject
from phyla.strategies.checks import check_integer
from phyla.strategies.stopping import Others, Reported

StopFunction: TypeAlias = Callable[[Reported], str | bool | None]


@final
@dataclass(frozen=True, slots=True)
class StopWith:
    """Stop a trial when a function says so.

    Args:
        function: called as `function(reported)` for every report, in order; returns why to stop, in words (or
            True), or None (or False) to go on. It has to be quick and to depend on nothing else. For worker
            processes it has to be a function of a file, no lambda.
        history: how many of the trial's last reports `reported.reports` holds.

    Raises:
        ConfigurationError: it is no function, or the history is not at least 1.
    """

    function: StopFunction
    history: int = 100

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise ConfigurationError(f"StopWith({self.function!r}): give a function of what was reported")
        check_integer("StopWith", "history", self.history, 1)

    @property
    def marks_every(self) -> None:
        """It compares with no other trial."""
        return

    def judge(self, reported: Reported, others: Others) -> JsonObject | None:
        """Ask the function.

        Raises:
            ConfigurationError: it returned neither words nor a bool nor None.
        """
        name = getattr(self.function, "__name__", repr(self.function))
        said = self.function(reported)
        if said is None or (isinstance(said, str | bool | np.bool_) and not said):
            return None
        if not isinstance(said, str | bool | np.bool_):
            raise ConfigurationError(
                f"StopWith({name}) returned {said!r}; return why to stop, in words, or None to go on"
            )
        return {"rule": name, "step": reported.step, **({"why": said} if isinstance(said, str) else {})}
