"""Counts the steps of a trial in the hooks of a framework with its own training loop."""

import logging
from collections.abc import Iterator
from typing import final

from phyla.errors import ConfigurationError
from phyla.worker.training.trial import Trial, session_of

LOG = logging.getLogger("phyla")
_warned: set[str] = set()


def refuse_measuring(trial: Trial, measure: str, train: str) -> None:
    """Reject training in a trial that only measures."""
    if trial.measuring:
        raise ConfigurationError(
            f"this trial only measures a checkpoint again; write `if trial.measuring: {measure}` instead of "
            f"{train}"
        )


@final
class FrameworkSteps:
    """The steps of a trial, for a framework that counts steps itself, perhaps from another number.

    Attributes:
        end: the framework's count at the end of the trial.
    """

    def __init__(self, trial: Trial, count: int) -> None:
        self._session = session_of(trial)
        self._steps: Iterator[int] = trial.steps()
        self.going = next(self._steps, None) is not None
        # Weights that were imported have age 0, whatever their framework counted before.
        self._offset = count - self._session.reached_step
        self.end = trial.end_step + self._offset

    def reach(self, count: int) -> bool:
        """Record the framework's count of steps; return whether to continue."""
        while self.going and self.age(count) > self._session.reached_step:
            self.going = next(self._steps, None) is not None
        return self.going

    def age(self, count: int) -> int:
        """Return the age of the weights at a count of the framework."""
        return count - self._offset

    @property
    def interrupted(self) -> bool:
        """Whether the trial should stop before its end."""
        return self._session.interrupted

    def check_length(self, subject: str, most: int) -> None:
        """Reject training that ends before the strategy; warn, once per process, if it is longer."""
        total = self._session.total_steps
        if most < (self.end if total is None else total + self._offset):
            trains = f"this trial trains up to {self.end}" if total is None else f"the strategy trains {total}"
            raise ConfigurationError(
                f"{subject} has max_steps={most}, and {trains}; write max_steps=... with the strategy's "
                "total_steps: training ends there, and the schedule goes by it"
            )
        if total is not None and most > total + self._offset and subject not in _warned:
            _warned.add(subject)
            LOG.warning(
                "warning: %s has max_steps=%d, and the strategy trains total_steps=%d: a schedule that goes by "
                "max_steps does not come to its end; make them equal, unless this is meant",
                *(subject, most, total),
            )

    def check_ended(self, subject: str, count: int) -> None:
        """Reject training that ended before the trial."""
        if self.going:
            raise ConfigurationError(
                f"{subject} ended at global_step={count}, and this trial ends at global_step={self.end}; write "
                "max_steps=... with the strategy's total_steps, and leave out what ends training early, such as "
                "EarlyStopping"
            )
