"""Takes a trial's steps from the hooks of a framework that has a training loop of its own."""

from collections.abc import Iterator
from typing import final

from phyla.worker.trial import Trial, session_of


@final
class Steps:
    """The steps of a trial, for a framework that counts steps itself, perhaps from another number.

    Attributes:
        end: what the framework's count is at the end of the trial.
    """

    def __init__(self, trial: Trial, count: int) -> None:
        self._session = session_of(trial)
        self._steps: Iterator[int] = trial.steps()
        self.going = next(self._steps, None) is not None
        # Weights that were imported have age 0, whatever their framework counted before.
        self._offset = count - self._session.reached_step
        self.end = trial.end_step + self._offset

    def reach(self, count: int) -> bool:
        """Take note of the framework's count of steps; return whether to train on."""
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
