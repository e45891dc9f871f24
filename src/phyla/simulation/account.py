"""What is counted while a study is simulated."""

import math
from array import array
from collections.abc import Sequence
from typing import final

import numpy as np

from phyla.records import Group, GroupState, TrialRecord
from phyla.simulation.outcome import EvaluationLag, Steps, WorkerSeconds


@final
class Account:
    """Counts seconds, steps, attempts and checkpoints.

    Args:
        suites: names of the study's suites.

    Attributes:
        seconds: seconds of workers, by what they went to, as in `WorkerSeconds`.
        wasted: steps of attempts that did not complete, by why.
        attempts: attempts at trials.
        checkpoints: checkpoints that were there at the same time, at most.
        lags: per suite, seconds from the commit of each checkpoint to the end of its group.
    """

    def __init__(self, suites: Sequence[str]) -> None:
        self.seconds = dict.fromkeys(("training", "evaluating", "moving", "waiting", "lost"), 0.0)
        self.wasted = {"preempted": 0, "failed": 0}
        self.attempts = 0
        self.checkpoints = 0
        self.lags: dict[str, list[float]] = {suite: [] for suite in suites}
        # By trial: whose weights it took, and the steps it completed. Ids count up from 1.
        self._parents = array("q", [0])
        self._steps = array("q", [0])

    def completed(self, trial: TrialRecord, steps: int) -> None:
        """A trial completed with that many steps."""
        missing = trial.id + 1 - len(self._steps)
        if missing > 0:
            self._parents.extend([0] * missing)
            self._steps.extend([0] * missing)
        self._parents[trial.id] = trial.parent or 0
        self._steps[trial.id] = steps

    def worker_seconds(self) -> WorkerSeconds:
        """Return what the workers did."""
        return WorkerSeconds(**self.seconds)

    def steps(self, heads: Sequence[int]) -> Steps:
        """Return all steps by what became of them.

        Args:
            heads: the trials that the members' last weights come from.
        """
        kept = self._kept(heads)
        return Steps(kept=kept, abandoned=sum(self._steps) - kept, **self.wasted)

    def trial_steps(self) -> tuple[int, int]:
        """Return the steps of the shortest and of the longest trial that trained; zeros without any."""
        trained = sorted(set(self._steps) - {0}) or [0]
        return trained[0], trained[-1]

    def _kept(self, heads: Sequence[int]) -> int:
        """Return how many steps are among the ancestors of these trials."""
        kept, seen = 0, bytearray(len(self._steps))
        for trial in heads:
            at = trial
            while at and not seen[at]:
                seen[at] = 1
                kept += self._steps[at]
                at = self._parents[at]
        return kept

    def lag(self, groups: Sequence[Group]) -> dict[str, EvaluationLag]:
        """Return how long evaluation took to follow, per suite.

        Args:
            groups: the study's, as they are at the end.
        """
        found = {}
        for name, lags in self.lags.items():
            others = sum(group.suite == name and group.state is not GroupState.COMPLETE for group in groups)
            found[name] = EvaluationLag(
                complete=len(lags),
                others=others,
                median_s=float(np.median(lags)) if lags else math.nan,
                longest_s=max(lags, default=math.nan),
            )
        return found
