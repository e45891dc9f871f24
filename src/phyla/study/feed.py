"""The newest decisions of a study in plain words."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from phyla.records import AttemptState, JobState, TrialRecord, said_by
from phyla.strategies import describe

if TYPE_CHECKING:
    from phyla.store import Reader
    from phyla.study.results import Results

NEWEST = 200
"""Trials that are looked at, at least."""
ROUTINE = ("continue", "schedule", "replay")
"""Decisions that are left out where nothing changes: nearly all trials of most studies."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Something that was decided about a member, or happened to its trial.

    Attributes:
        at: when, in seconds since the epoch.
        trial: the trial that it led to, or that ended.
        member: index of the member whose trial it is.
        words: the whole of it on one line, the member included.
    """

    at: float
    trial: int
    member: int
    words: str


def decisions(results: "Results", *, limit: int) -> list[Decision]:
    """Return what was decided last, and what failed, was stopped or cancelled, newest first.

    Only the newest trials and the unfinished ones are read, so that it takes the same time however long the
    history is. Members that go on unchanged are left out.

    Args:
        results: of the study.
        limit: how many to return at most.
    """
    found = results._read(lambda reader: list(_found(reader, max(NEWEST, 5 * limit))))
    return sorted(found, key=lambda one: (one.at, one.trial), reverse=True)[:limit]


def _found(reader: "Reader", count: int) -> Iterator[Decision]:
    newest = reader.newest_trials(count)
    known = {trial.id for trial in newest}
    for trial in [*newest, *(trial for trial in reader.unfinished() if trial.id not in known)]:
        who = f"member {trial.member}"

        def told(at: float | None, words: str, trial: TrialRecord = trial) -> Decision:
            return Decision(at=at or trial.created_at, trial=trial.id, member=trial.member, words=words)

        routine = trial.reason.get("decision") in ROUTINE
        if not routine or trial.replaces is not None or trial.reason.get("changes"):
            yield told(trial.created_at, describe(trial.reason, who))
        for attempt in reader.attempts(trial.id) if trial.failures else ():
            if attempt.state in (AttemptState.FAILED, AttemptState.LOST) and attempt.error:
                last = trial.state is JobState.FAILED and attempt.token == trial.token
                then = "failed for good" if last else "failed and is tried again"
                yield told(attempt.ended_at, f"{who}: trial {trial.id} {then}: {said_by(attempt.error)}")
        if trial.stop_reason is not None:
            yield told(trial.ended_at, describe(trial.stop_reason, who))
        elif trial.state is JobState.CANCELLED:
            yield told(trial.ended_at, f"{who}: trial {trial.id} was cancelled: {said_by(trial.error)}")
