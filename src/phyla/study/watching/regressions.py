"""The regressions of a watched run as its results come in, each told once."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, final

from phyla.records import EvalEvent
from phyla.study.results.evaluations import Evaluations
from phyla.study.results.watched_runs import Change, RunChanges


@final
class RegressionFeed:
    """Follows the regressions of a run; reads each result once.

    Attributes:
        events: the regressions, by all results so far, without provisional ones.
    """

    def __init__(self, evaluations: Evaluations) -> None:
        self._evaluations = evaluations
        # Before the results, so that what comes meanwhile is read again.
        self._changes = RunChanges(evaluations._store, evaluations.run)
        self._regressions = evaluations.regressions()
        self.events: list[EvalEvent] = []
        self._refresh()

    def new(self) -> list[Change]:
        """Return what happened in the run since the call before, then the regressions that came and went."""
        changes = self._changes.new()
        ids = sorted({change.seen.id for change in changes if change.seen})
        if not ids:
            return changes
        self._evaluations.read_into(self._regressions, ids)
        before = self.events
        self._refresh()
        return [*changes, *self._differences(before)]

    def _refresh(self) -> None:
        events = self._regressions.events()
        # A reported regression is not withdrawn just because one more result is expected.
        news = unlike(events, self.events)
        self.events = [event for event in events if not event.data["provisional"] or event not in news]

    def _differences(self, before: list[EvalEvent]) -> Iterator[Change]:
        for event in unlike(before, self.events):
            withdrawn = f"withdrawn, by the results since: {event.message}"
            yield self._change(replace(event, kind="withdrawn", message=withdrawn))
        yield from map(self._change, unlike(self.events, before))

    def _change(self, event: EvalEvent) -> Change:
        return Change(run=self._evaluations.name, kind="event", event=event)


def unlike(events: list[EvalEvent], others: list[EvalEvent]) -> list[EvalEvent]:
    """Return the regressions that others do not have: of the same metric, with a checkpoint in common."""
    known = {key for other in others for key in keys(other)}
    return [event for event in events if not known & keys(event)]


def keys(event: EvalEvent) -> set[tuple[Any, ...]]:
    """Return the metric of a regression with each of its checkpoints."""
    checkpoints = event.data["checkpoints"]
    assert isinstance(checkpoints, list)
    return {(event.suite, event.data["task"], event.data["metric"], number) for number in checkpoints}
