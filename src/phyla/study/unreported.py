"""Warns where a stopping rule waits for a metric that training does not report."""

import contextlib
import time
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, final

from phyla.arguments import suggestion
from phyla.errors import StoreError
from phyla.machine import Rules
from phyla.records import TrialKind, TrialRecord, TrialState
from phyla.study.progress import AT_ONCE, NEWEST, newest_trial

if TYPE_CHECKING:
    from phyla.store import Store

EVERY_S = 1.0
"""Seconds between two looks, until a trial has completed."""


@final
class Unreported:
    """Looks at what completed trials reported, once there are any, and warns once.

    Rules say by `watches(objective)`, which is optional, without which metrics they stop nothing.

    Args:
        study: name of the study.
        rules: what the study goes by.
    """

    def __init__(self, study: str, rules: Rules) -> None:
        self._study = study
        self._watched = [
            (rule, metric)
            for rule in rules.stopping
            if hasattr(rule, "watches")
            for metric in rule.watches(rules.objective)
        ]
        self._next = 0.0

    def look(self, store: "Store", study: int, *, at_once: bool = False) -> None:
        """Look if it is time, and if nothing was seen yet.

        Args:
            store: where the study is.
            study: its key.
            at_once: look also if it is not time.
        """
        now = time.monotonic()
        if not self._watched or (now < self._next and not at_once):
            return
        self._next = now + EVERY_S
        # A warning is not worth ending a run for.
        with contextlib.suppress(StoreError), store.reader(study) as reader:
            newest = newest_trial(reader.members())
            trials = reader.trials(after=newest - NEWEST, limit=AT_ONCE)
            completed = [
                row for row in trials if row.state is TrialState.COMPLETED and row.kind is TrialKind.TRAIN
            ]
            if completed:
                self._warn(completed)
                self._watched = []

    def _warn(self, completed: Sequence[TrialRecord]) -> None:
        reported = {metric: None for trial in completed for metric in trial.metrics}
        for rule, metric in self._watched:
            if metric not in reported:
                warnings.warn(
                    f"study {self._study!r}: {rule!r} stops nothing as long as {metric!r} is not reported, and "
                    f"none of the trials that have completed ({len(completed)}) reported it; "
                    f"{suggestion(metric, reported)}",
                    stacklevel=3,
                )
