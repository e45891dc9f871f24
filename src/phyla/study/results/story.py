"""The story of a trial: its events in order, from the store."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from phyla.formatting import duration, fitness, format_count, infeasible, number, params, size
from phyla.machine import Reader
from phyla.records import (
    Attempt,
    Checkpoint,
    CheckpointKind,
    Group,
    JobState,
    JsonObject,
    Report,
    TrialRecord,
    on_one_line,
    summarize_error,
)
from phyla.strategies import describe

ORIGIN = ("member", "reason", "parent", "jump_from", "params_from", "replaces")
CREATED = (*ORIGIN, "start_step", "end_step", "params")
CHECKPOINT = ("name", "kind", "step", "state", "size_bytes", "error")
ENDED = ("state", "reached_step", "fitness", "failures", "error", "stop_reason")
EVALUATION = ("suite", "replicate", "state", "values", "why")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened to a trial.

    Attributes:
        at: when, in seconds since the epoch; None of reports, whose times are not stored.
        what: created, attempt, reports, attempt ended, checkpoint, ended, evaluation, or descendant.
        words: what happened, on one line.
        facts: the same as data.
    """

    at: float | None
    what: str
    words: str
    facts: JsonObject


def story(
    trial: TrialRecord,
    *,
    attempts: Sequence[Attempt],
    reports: Mapping[int, Sequence[Report]],
    checkpoint: Checkpoint | None,
    groups: Sequence[Group],
    descendants: Sequence[TrialRecord],
) -> list[Event]:
    """Return what happened to a trial, in order of time.

    Args:
        trial: the trial.
        attempts: those at it, oldest first.
        reports: what each attempt reported, by its token.
        checkpoint: the one that it left, or its newest progress.
        groups: the evaluations of the checkpoint.
        descendants: the trials that started from its weights, or that replaced it.
    """
    events = [_created(trial)]
    for attempt in attempts:
        events += _attempt(attempt, reports.get(attempt.token, ()))
    events += [] if checkpoint is None else [_checkpoint(checkpoint)]
    events += [] if trial.ended_at is None else [_ended(trial, trial.ended_at)]
    events += [*map(_evaluation, groups), *(_descendant(trial, child) for child in descendants)]
    return _in_order(events)


def _in_order(events: Sequence[Event]) -> list[Event]:
    """Return events by time; reports, which have none, stay with the beginning of their attempt."""
    pairs: list[tuple[float, Event]] = []
    for event in events:
        pairs.append((pairs[-1][0] if event.at is None else event.at, event))
    return [event for _, event in sorted(pairs, key=lambda pair: pair[0])]


def read_story(reader: Reader, trial_id: int) -> list[Event]:
    """Return the story of a trial of a study; nothing if there is no such trial."""
    trial = reader.job(trial_id)
    if not isinstance(trial, TrialRecord):
        return []
    attempts = reader.attempts(trial.id)
    # A measured checkpoint belongs to the trial that wrote it.
    name = None if trial.measures else trial.checkpoint or trial.progress
    seen = None if name is None else reader.find_seen(name, trial.checkpoint_index)
    later = reader.trials(member=trial.member, after=trial.id, limit=1)
    return story(
        trial,
        attempts=attempts,
        reports={attempt.token: reader.reports(trial.id, attempt.token) for attempt in attempts},
        checkpoint=None if name is None else reader.checkpoint(name),
        groups=() if seen is None else reader.groups_of(seen.id),
        descendants=[*reader.children(trial.id), *(other for other in later if other.replaces == trial.id)],
    )


def _created(trial: TrialRecord) -> Event:
    weights = "" if trial.parent is None else f"weights of trial {trial.parent}"
    if trial.jump_from is not None:
        weights += f" in place of those of trial {trial.jump_from}"
    origin = trial.params_from
    hyperparameters = "" if origin in (None, trial.parent) else f"hyperparameters from trial {origin}"
    why = describe(trial.reason, f"member {trial.member}")
    steps = f"steps {trial.start_step:,} to {trial.end_step:,}"
    words = "; ".join(filter(None, [why, weights, hyperparameters, steps, params(trial.params)]))
    return Event(at=trial.created_at, what="created", words=words, facts=_picked(trial, *CREATED))


def _attempt(attempt: Attempt, reports: Sequence[Report]) -> list[Event]:
    facts: dict[str, Any] = {"attempt": attempt.token, "worker": attempt.worker}
    name = f"attempt {attempt.token}"
    start = Event(at=attempt.claimed_at, what="attempt", words=f"{name} began on {attempt.worker}", facts=facts)
    return [start, *_reports(name, reports, facts), *_attempt_ended(name, attempt, facts)]


def _reports(name: str, reports: Sequence[Report], facts: JsonObject) -> list[Event]:
    if not reports:
        return []
    first, last = reports[0], reports[-1]
    words = (
        f"{name}: {format_count(len(reports), 'report')}, the last at step {last.step:,}: {params(last.metrics)}"
    )
    if len(reports) > 1:
        words += f"; the first at step {first.step:,}: {params(first.metrics)}"
    ends = {"first": _picked(first, "step", "metrics"), "last": _picked(last, "step", "metrics")}
    return [Event(at=None, what="reports", words=words, facts={**facts, "count": len(reports), **ends})]


def _attempt_ended(name: str, attempt: Attempt, facts: JsonObject) -> list[Event]:
    if attempt.ended_at is None:
        return []
    why = f": {attempt.why}" if attempt.error or attempt.cause else ""
    words = f"{name} {attempt.state} after {duration(attempt.ended_at - attempt.claimed_at)}{why}"
    ending = {"state": attempt.state, "error": attempt.error}
    return [Event(at=attempt.ended_at, what="attempt ended", words=words, facts={**facts, **ending})]


def _checkpoint(row: Checkpoint) -> Event:
    kind = "progress" if row.kind is CheckpointKind.PROGRESS else "checkpoint"
    why = f" ({on_one_line(row.error)})" if row.error else ""
    words = f"{kind} {row.name} of step {row.step:,}, {size(row.size_bytes)}; now {row.state}{why}"
    return Event(at=row.created_at, what="checkpoint", words=words, facts=_picked(row, *CHECKPOINT))


def _ended(trial: TrialRecord, at: float) -> Event:
    words = "; ".join(filter(None, [_end(trial), infeasible(trial)]))
    return Event(at=at, what="ended", words=words, facts=_picked(trial, *ENDED))


def _end(trial: TrialRecord) -> str:
    if trial.stop_reason is not None:
        return describe(trial.stop_reason)
    if trial.state is not JobState.COMPLETED:
        final = " for good" if trial.state is JobState.FAILED else ""
        return f"{trial.state}{final}: {summarize_error(trial.error)}"
    return f"completed at step {trial.reached_step:,}, fitness {fitness(trial)}"


def _evaluation(group: Group) -> Event:
    result = format_values(group) or on_one_line(group.why or "")
    words = f"suite {group.suite}: {group.state}{f': {result}' if result else ''}"
    at = group.created_at if group.ended_at is None else group.ended_at
    return Event(at=at, what="evaluation", words=words, facts=_picked(group, *EVALUATION))


def format_values(group: Group) -> str:
    """Return the aggregates of a group on one line."""
    values: Mapping[str, Any] = group.values
    return ", ".join(f"{name} {number(value['value'])}" for name, value in values.items())


def _descendant(trial: TrialRecord, child: TrialRecord) -> Event:
    how = "replaced it" if child.replaces == trial.id else "started from its weights"
    words = f"trial {child.id} of member {child.member} {how}: {describe(child.reason)}"
    facts = {"trial": child.id, "member": child.member, "replaces": child.replaces == trial.id}
    return Event(at=child.created_at, what="descendant", words=words, facts=facts)


def _picked(record: object, *names: str) -> JsonObject:
    return {name: getattr(record, name) for name in names}
