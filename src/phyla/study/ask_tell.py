"""Asking for trials, and telling what came of them, for those who train in a loop of their own."""

import contextlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from phyla import settings
from phyla.errors import (
    CheckpointsAbsent,
    CheckpointStorageFailed,
    ConfigurationError,
    LeaseLost,
    NoFitness,
    StoreError,
    StudyChanged,
    StudyFailed,
)
from phyla.machine import Claimed, Ended, Failure, NoWork, Outdated
from phyla.records import MemberState, StudyState, TrialRecord
from phyla.study.opening import OpenedStudy
from phyla.worker import Session, Trial, session_of, unusable_start

if TYPE_CHECKING:
    from phyla.study.study import Study


def ask(study: "Study", opened: OpenedStudy, worker: str, count: int) -> list[Trial]:
    """Claim up to `count` trials; see `Study.ask`."""
    opened.repository.check_owner()
    trials: list[Trial] = []
    rest: NoWork | None = None
    while rest is None and len(trials) < count:
        _, claimed, rest = opened.client.exchange((), worker, count - len(trials))
        trials += _usable(study, opened, [work.trial for work in claimed if isinstance(work, Claimed)])
    if not trials and isinstance(rest, Outdated):
        raise StudyChanged(rest.why)
    if not trials and isinstance(rest, Ended) and rest.state is StudyState.FAILED:
        raise StudyFailed(rest.message or f"study {study.name!r} has failed")
    return trials


def _usable(study: "Study", opened: OpenedStudy, records: Sequence[TrialRecord]) -> list[Trial]:
    """Return the trials whose checkpoints can be used; the others are handed back."""
    trials: list[Trial] = []
    for place, record in enumerate(records):
        try:
            unusable = unusable_start(record, opened.client, opened.repository)
        except (CheckpointStorageFailed, CheckpointsAbsent):
            for other in records[place:]:
                opened.client.release(other.id, other.token)
            raise
        if unusable is not None:
            with contextlib.suppress(LeaseLost):
                opened.client.fail(unusable)
            continue
        session = Session(
            record,
            opened.client,
            opened.repository,
            metrics=study.rules.reported_metrics,
            work_root=study.places.work(study.name),
            clock=settings.system_clock,
        )
        trials.append(session.trial)
    return trials


def tell(
    study: "Study",
    opened: OpenedStudy,
    worker: str,
    trials: Sequence[Trial],
    metrics: Sequence[Mapping[str, Any]],
    checkpoint: Trial | None,
) -> None:
    """Complete trials, in one transaction; see `Study.tell`."""
    for trial, values in zip(trials, metrics, strict=False):
        trial.report(values)
    sessions = [session_of(trial) for trial in trials]
    for session in sessions:
        if session.unreported:
            raise NoFitness(session.missing(f"tell(): trial {session.id} never reported", "or pass metrics="))
    if checkpoint is not None and (not trials or checkpoint is not trials[0]):
        raise ConfigurationError("tell(checkpoint=...): pass the first of the trials, which holds it")
    shared = session_of(checkpoint).commit() if checkpoint is not None else None
    completions = [
        session.completion(shared, index) if shared is not None else session.completion(session.commit())
        for index, session in enumerate(sessions)
    ]
    try:
        answers, _, _ = opened.client.exchange(completions, worker, 0)
    except StoreError:
        for session, completion in zip(sessions, completions, strict=True):
            session.give_back(completion.reports)
        raise
    # The trials count already; if this fails, the next one who asks ends the study.
    with contextlib.suppress(StoreError):
        if finished(opened):
            # Asking, and getting nothing, ends a study whose members are all done.
            opened.client.exchange((), worker, 1)
    study.lookout.look_at_metrics(opened.store, opened.record.id, at_once=True)
    for answer in answers:
        if isinstance(answer, LeaseLost):
            raise answer


def tell_failed(opened: OpenedStudy, trials: Sequence[Trial], error: str) -> None:
    """Fail trials; they are tried again or given up."""
    lost: LeaseLost | None = None
    for trial in trials:
        session = session_of(trial)
        session.discard()
        try:
            opened.client.fail(Failure(job=trial.id, token=trial.token, error=error, timings=session.timings()))
        except LeaseLost as gone:
            lost = gone
    if lost is not None:
        raise lost


def finished(opened: OpenedStudy) -> bool:
    """Return whether a study takes no more work: it ended, or every member is done."""
    with opened.store.reader(opened.record.id) as reader:
        return reader.study().state is not StudyState.RUNNING or all(
            member.state is MemberState.DONE for member in reader.members()
        )
