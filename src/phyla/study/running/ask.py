"""Asking for trials, and telling their results."""

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from phyla import queries, settings
from phyla.client import Client
from phyla.errors import (
    CheckpointMissing,
    CheckpointsAbsent,
    CheckpointStorageFailed,
    ConfigurationError,
    LeaseLost,
    NoFitness,
    StoreError,
    StudyChanged,
    StudyFailed,
)
from phyla.machine import ONLY_END, Claimed, Ended, Failure, Idle, NoWork, Outdated
from phyla.queries import Summary
from phyla.records import JobKind, MemberState, StudyState, TrialRecord
from phyla.strategies.final import final_of
from phyla.study.declaration import Declared
from phyla.study.maintaining.recover import resume_study, take_back
from phyla.validation import check_value
from phyla.worker import Launch, Stopwatch, Trial, TrialSession, session_of, unusable_start

LOOK_S = 1.0
"""How long to wait at most for a commit before asking again: leases end without one."""


def open_launch(declared: Declared, client: Client) -> Launch:
    """Return the launch under whose worker name this process asks; a stopped or failed study resumes."""
    launch = Launch(declared.places.locks, client.store.url, [declared.name])
    resume_study(client.store, client.record)
    take_back(client, launch)
    return launch


def check_asked(count: int | None, wait_s: float) -> int:
    """Return how many trials `Study.ask` asks for; reject invalid arguments."""
    check_value("ask", "wait_s", wait_s, "[0, inf)")
    asked: int = check_value("ask", "count", 1 if count is None else count, 1)
    return asked


def ask(
    declared: Declared, client: Client, launch: Launch, count: int, *, whole: bool, wait_s: float
) -> list[Trial]:
    """Claim up to `count` trials whose checkpoints can be used, or with `whole` as many; see `Study.ask`."""
    ends_at = time.monotonic() + wait_s
    while True:
        trials, rest = _ask(declared, client, launch, count, whole)
        left_s = ends_at - time.monotonic()
        if trials or left_s <= 0 or not isinstance(rest, Idle):
            break
        client.wait(min(LOOK_S, left_s))
    if not trials and isinstance(rest, Outdated):
        raise StudyChanged(rest.why)
    if not trials and isinstance(rest, Ended) and rest.state is StudyState.FAILED:
        raise StudyFailed(rest.message or f"study {declared.name!r} has failed")
    return trials


def _ask(
    declared: Declared, client: Client, launch: Launch, count: int, whole: bool
) -> tuple[list[Trial], NoWork | None]:
    client.repository.check_owner()
    work_root = declared.places.folder("work", declared.name)
    trials: list[Trial] = []
    rest: NoWork | None = None
    # The seconds of trials that are trained together are counted once.
    watch = Stopwatch()
    while rest is None and len(trials) < count:
        with launch.asking:
            # A request that is repeated because its answer was lost gets the same trials.
            _, claimed, rest = client.exchange(
                (), launch.worker_name(), count - len(trials), whole=whole, held=launch.given
            )
            records = [work.trial for work in claimed if isinstance(work, Claimed)]
            launch.given.update(record.id for record in records)
        # Members that were trained together start from one checkpoint.
        usable: set[str] = set()
        for place, record in enumerate(records):
            try:
                unusable = unusable_start(record, client, client.repository, usable=usable)
                if unusable is not None:
                    with contextlib.suppress(LeaseLost):
                        _let_go(launch, record.id, partial(client.fail, unusable))
                    continue
                session = TrialSession(
                    record,
                    client,
                    client.repository,
                    metrics=declared.rules.reported_metrics,
                    work_root=work_root,
                    clock=settings.system_clock,
                    watch=watch,
                )
            except (CheckpointMissing, CheckpointStorageFailed, CheckpointsAbsent):
                _give_back(launch, client, [*trials, *records[place:]])
                raise
            trials.append(session.trial)
    if whole and len(trials) < count:
        _give_back(launch, client, trials)
        trials = []
    return trials, rest


def _give_back(launch: Launch, client: Client, trials: Iterable[Trial | TrialRecord]) -> None:
    """Return trials to the queue that nothing can train now."""
    for trial in trials:
        if isinstance(trial, Trial):
            session_of(trial).release()
        _let_go(launch, trial.id, partial(client.release, trial.id, trial.token))


def _let_go(launch: Launch, job: int, let_go: Callable[[], object]) -> None:
    """Release a trial of this process, which may claim it again."""
    with launch.asking:
        let_go()
        launch.given.discard(job)


def check_told(
    trials: Any, metrics: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None, error: str | Exception | None
) -> tuple[list[Trial], Sequence[Mapping[str, Any]]]:
    """Return the trials and metrics that `Study.tell` was given; reject invalid arguments."""
    many = [*trials] if isinstance(trials, Sequence) else [trials]
    reports = [metrics] if isinstance(metrics, Mapping) else metrics
    wrong = [value for value in many if not isinstance(value, Trial)]
    if wrong:
        raise ConfigurationError(f"tell({wrong[0]!r}): pass a trial that ask() gave")
    if error is not None and (not isinstance(error, str | Exception) or error == ""):
        raise ConfigurationError(
            f"tell(error={error!r}): pass the exception, or a message that describes the error"
        )
    if error is not None and reports is not None:
        raise ConfigurationError("tell(): pass either metrics, or the error of training")
    if reports is not None and not (
        isinstance(reports, Sequence) and all(isinstance(value, Mapping) for value in reports)
    ):
        raise ConfigurationError(
            f'tell(metrics={metrics!r}): pass a mapping such as {{"loss": 0.3}}, or one for each'
        )
    if reports is not None and len(reports) != len(many):
        raise ConfigurationError(f"tell(): {len(many)} trials, but {len(reports)} mappings of metrics")
    return many, reports or ()


def tell(
    client: Client,
    launch: Launch,
    trials: Sequence[Trial],
    metrics: Sequence[Mapping[str, Any]],
    checkpoint: Trial | None,
) -> None:
    """Complete trials, in one transaction; see `Study.tell`."""
    repeated = [session_of(trial).is_repeated(values) for trial, values in zip(trials, metrics, strict=False)]
    for trial, values, again in zip(trials, metrics, repeated, strict=False):
        if not again:
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
    # Trained together, they took equal parts of the time.
    phases = {phase for completion in completions for phase in completion.timings or ()}
    spent = {
        phase: sum((completion.timings or {}).get(phase, 0.0) for completion in completions) for phase in phases
    }
    shares = {phase: seconds / len(completions) for phase, seconds in spent.items()}
    completions = [replace(completion, timings=shares) for completion in completions]
    try:
        answers, _, _ = client.exchange(completions, launch.worker_name(), 0)
    except StoreError:
        for session, completion in zip(sessions, completions, strict=True):
            session.give_back(completion.reports)
        raise
    for session, completion, answer in zip(sessions, completions, answers, strict=True):
        session.release()
        if not isinstance(answer, LeaseLost):
            session.result = completion.metrics
            launch.given.discard(session.id)
    lost = [answer for answer in answers if isinstance(answer, LeaseLost)]
    _end_study(client, launch, sessions, look=bool(lost))
    if lost:
        raise lost[0]


def tell_failed(client: Client, launch: Launch, trials: Sequence[Trial], error: str | Exception) -> None:
    """Fail trials; they are tried again or given up."""
    lost: LeaseLost | None = None
    for session in map(session_of, trials):
        session.check_no_result(error)
    message = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
    for session in map(session_of, trials):
        reports = session.take_reports()
        try:
            stopped = client.report(session.id, session.token, reports).stop_reason is not None
        except StoreError:
            session.give_back(reports)
            raise
        session.discard()
        session.release()
        failure = Failure(job=session.id, token=session.trial.token, error=message, timings=session.timings())
        try:
            # A trial that these reports stopped has ended, and needs no failure.
            _let_go(launch, session.id, (lambda: None) if stopped else partial(client.fail, failure))
        except LeaseLost as gone:
            lost = gone
    _end_study(client, launch, [session_of(trial) for trial in trials])
    if lost is not None:
        raise lost


def _end_study(client: Client, launch: Launch, sessions: Sequence[TrialSession], *, look: bool = False) -> None:
    """End the study if it has nothing left to do; raise `StudyFailed` if it ends without a result.

    With `look`, something may have failed the study.
    """
    rest: NoWork | None = None
    # The trials count already; if this fails, the next ask ends the study.
    with contextlib.suppress(StoreError):
        summary = client.store.look(client.record.id, queries.summary)
        if look or _has_trained(summary) or any(session.record.kind is JobKind.FINAL for session in sessions):
            _, _, rest = client.exchange((), launch.worker_name(), 1, room=ONLY_END)
    if isinstance(rest, Ended) and rest.state is StudyState.FAILED:
        raise StudyFailed(rest.message or f"study {client.record.name!r} has failed")


def is_finished(client: Client, launch: Launch | None) -> bool:
    """Return whether a study takes no more work from a process, which has no launch before it asks."""
    summary = client.store.look(client.record.id, queries.summary)
    state = summary.study.state
    if state is not StudyState.RUNNING:
        return launch is not None or state not in (StudyState.STOPPED, StudyState.FAILED)
    return final_of(summary.study.config) is None and _has_trained(summary)


def _has_trained(summary: Summary) -> bool:
    return all(cohort.state is MemberState.DONE for cohort in summary.cohorts)
