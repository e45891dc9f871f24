"""Warns where a suite of a study gives no value, as when its objective names a metric of no eval task."""

import contextlib
import time
import warnings
from typing import TYPE_CHECKING, final

from phyla.errors import StoreError
from phyla.records import EvalTaskKind, GroupState, RunRecord, TrialState

if TYPE_CHECKING:
    from phyla.store import EvalReader, Store

EVERY_S = 1.0
"""Seconds between two looks, until each suite was aggregated once."""
AT_ONCE = 100
"""Groups of a suite that one look reads."""


@final
class Unaggregated:
    """Looks at the first results of each suite, and warns once of a suite that has results and no aggregates.

    Args:
        study: name of the study.
        run: under which its checkpoints are evaluated; None without suites.
        suites: names of its suites.
    """

    def __init__(self, study: str, run: RunRecord | None, suites: tuple[str, ...]) -> None:
        self._study = study
        self._run = run
        self._after = dict.fromkeys(suites, 0) if run is not None else {}
        self._next = 0.0

    def look(self, store: "Store", *, at_once: bool = False) -> None:
        """Look if it is time, and if there is a suite of which nothing was seen yet.

        Args:
            store: where the study is.
            at_once: look also if it is not time.
        """
        now = time.monotonic()
        if self._run is None or not self._after or (now < self._next and not at_once):
            return
        self._next = now + EVERY_S
        # A warning is not worth ending a run for.
        with contextlib.suppress(StoreError), store.evaluations(self._run) as reader:
            for suite in [*self._after]:
                self._look(reader, suite)

    def _look(self, reader: "EvalReader", suite: str) -> None:
        all_ended = True
        for group in reader.groups(suite=suite, after=self._after[suite], limit=AT_ONCE):
            if group.state is GroupState.PARTIAL and any(
                task.kind is EvalTaskKind.AGGREGATE and task.state is TrialState.FAILED
                for task in reader.group_tasks(group.id)
            ):
                del self._after[suite]
                warnings.warn(
                    f"study {self._study!r}: suite {suite!r} was evaluated, and gives nothing: {group.why}. Its "
                    "results are kept: correct the suite and run the study again",
                    stacklevel=4,
                )
                return
            if group.state is GroupState.COMPLETE:
                del self._after[suite]
                return
            all_ended = all_ended and group.state is not GroupState.QUEUED
            if all_ended:
                self._after[suite] = group.id
