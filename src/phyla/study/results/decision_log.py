"""The newest decisions of a study in plain words."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, final

from phyla.queries import Recent, recent
from phyla.records import AttemptState, JobState, TrialRecord, summarize_error
from phyla.strategies import describe

if TYPE_CHECKING:
    from phyla.study.results.results import Results

NEWEST = 200
"""Trials that are read, at least."""
ROUTINE = ("continue", "schedule", "replay")
"""Decisions that are omitted where nothing changes: nearly all trials of most studies."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """A decision about a member, or an event of its trial.

    Attributes:
        at: when, in seconds since the epoch.
        trial: the trial that it led to, or that ended.
        member: index of the member whose trial it is.
        words: the whole of it on one line, the member included.
        kind: "started" from nothing, "decided" otherwise; of a trial "failed", "stopped" or "cancelled".
    """

    at: float
    trial: int
    member: int
    words: str
    kind: str = "decided"

    @property
    def line(self) -> str:
        """The time of day, and the words."""
        return f"{time.strftime('%H:%M:%S', time.localtime(self.at))}  {self.words}"


def decisions(results: "Results", *, limit: int) -> list[Decision]:
    """Return the last decisions, and trials that failed, were stopped or cancelled, newest first.

    Only the newest trials and the unfinished ones are read, so the time does not grow with the history.
    Members that continue unchanged are left out, and all but the first of a checkpoint's measurements in a final.
    """
    entries = _entries(results._query(recent, newest=max(NEWEST, 5 * limit)))
    return sorted(entries, key=lambda entry: (entry.at, entry.trial), reverse=True)[:limit]


def _entries(page: Recent) -> Iterator[Decision]:
    measured = set[int | None]()
    for trial in page.trials:
        member = f"member {trial.member}"

        def told(words: str, at: float | None, kind: str, trial: TrialRecord = trial) -> Decision:
            at = trial.created_at if at is None else at
            return Decision(at=at, trial=trial.id, member=trial.member, words=words, kind=kind)

        decision = trial.reason.get("decision")
        first = decision != "final" or trial.parent not in measured
        measured |= {trial.parent} if decision == "final" else set()
        if first and (decision not in ROUTINE or trial.replaces is not None or trial.reason.get("changes")):
            kind = "started" if decision == "start" else "decided"
            yield told(describe(trial.reason, member), trial.created_at, kind)
        for attempt in page.attempts.get(trial.id, ()):
            if attempt.state in (AttemptState.FAILED, AttemptState.LOST) and attempt.error:
                last = trial.state is JobState.FAILED and attempt.token == trial.token
                then = "failed for good" if last else "failed and is retried"
                why = replace(attempt.cause, log=None).words() if attempt.cause else summarize_error(attempt.error)
                yield told(f"{member}: trial {trial.id} {then}: {why}", attempt.ended_at, "failed")
        if trial.stop_reason is not None:
            yield told(describe(trial.stop_reason, member), trial.ended_at, "stopped")
        elif trial.state is JobState.CANCELLED:
            yield told(
                f"{member}: trial {trial.id} was cancelled: {summarize_error(trial.error)}",
                trial.ended_at,
                "cancelled",
            )
