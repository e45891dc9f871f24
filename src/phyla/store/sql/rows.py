"""Records to rows and back.

Rows are read by position, in the order of the table's columns. For writing, a record gives its values by
column name. `changed_member` and `changed_trial` say which fields differ from the record that was read, so
that only those are written.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any, TypeAlias, final

from phyla.records import (
    Attempt,
    AttemptState,
    Checkpoint,
    CheckpointKind,
    CheckpointState,
    Criteria,
    Json,
    JsonObject,
    Member,
    MemberState,
    Report,
    Scored,
    StudyRecord,
    StudyState,
    Tally,
    TrialKind,
    TrialRecord,
    TrialState,
)
from phyla.store.sql.codec import decode, encode

Row: TypeAlias = Sequence[Any]
Values: TypeAlias = dict[str, Any]

MEMBER_STATES = {state.value: state for state in MemberState}
TRIAL_STATES = {state.value: state for state in TrialState}
TRIAL_KINDS = {kind.value: kind for kind in TrialKind}
ATTEMPT_STATES = {state.value: state for state in AttemptState}

MEMBER_FIELDS = (
    "state",
    "progress",
    "generation",
    "decided_at",
    "head",
    "states",
    "best",
    "current_trial",
    "broken_trial",
    "replacements",
    "measures_left",
    "slot",
    "stops",
    "retired",
    "joined_steps",
    "joined_generation",
)
TRIAL_FIELDS = (
    "state",
    "reached_step",
    "token",
    "failures",
    "progress",
    "progress_step",
    "fitness",
    "order",
    "metrics",
    "checkpoint",
    "checkpoint_index",
    "error",
    "worker",
    "started_at",
    "ended_at",
    "stop_reason",
    "criteria",
)
"""Fields of a trial that may change; the others are facts of the decision that made it."""

_member_fields = attrgetter(*MEMBER_FIELDS)
_trial_fields = attrgetter(*TRIAL_FIELDS)

FIELD_COLUMNS: dict[str, tuple[str, ...]] = {
    "order": ("fitness_order",),
}
"""Columns of the fields that are not simply one column of the same name."""


def columns(fields: Iterable[str]) -> list[str]:
    """Return the columns that hold fields."""
    return [column for field in fields for column in FIELD_COLUMNS.get(field, (field,))]


def changed_member(old: Member, new: Member) -> tuple[str, ...]:
    """Return the fields whose values are other objects than before."""
    pairs = zip(MEMBER_FIELDS, _member_fields(old), _member_fields(new), strict=True)
    return tuple([field for field, before, after in pairs if before is not after])


def changed_trial(old: TrialRecord, new: TrialRecord) -> tuple[str, ...]:
    """Return the fields that may change whose values are other objects than before."""
    pairs = zip(TRIAL_FIELDS, _trial_fields(old), _trial_fields(new), strict=True)
    return tuple([field for field, before, after in pairs if before is not after])


def text(value: str | None) -> str | None:
    """Return free text as every database can hold it: without NUL and lone surrogates."""
    if value is None:
        return None
    return value.replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode("utf-8")


def study_record(row: Row) -> StudyRecord:
    """Return the study of a row."""
    return StudyRecord(
        id=row[0],
        name=row[1],
        state=StudyState(row[2]),
        config=decode(row[3]),
        seed=row[4],
        population_size=row[5],
        created_at=row[6],
        strategy_state=None if row[7] is None else decode(row[7]),
        state_version=row[8],
        message=row[9],
        resumed_at=row[10],
    )


@final
class Studies:
    """Records of studies whose rows have not changed since they were last read; configurations are long."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Row, StudyRecord]] = {}

    def record(self, row: Row | None) -> StudyRecord | None:
        """Return the study of a row, if there is one."""
        if row is None:
            return None
        known = self._known.get(row[0])
        if known is not None and known[0] == row:
            return known[1]
        record = study_record(row)
        if known is not None and known[0][3] == row[3]:
            # One object as long as it is one text: who goes by it sees at a glance that it is the same.
            record = replace(record, config=known[1].config)
        self._known[record.id] = row, record
        return record


def scored_json(scored: Scored) -> str:
    """Return a score, weights and hyperparameters as JSON."""
    return encode(
        {
            "trial": scored.trial,
            "member": scored.member,
            "checkpoint": scored.checkpoint,
            "index": scored.index,
            "step": scored.step,
            "params": scored.params,
            "fitness": scored.fitness,
            "order": scored.order,
            "measurements": scored.measurements,
            **({} if scored.stderr is None else {"stderr": scored.stderr}),
            **({} if scored.criteria is None else {"criteria": scored.criteria.to_json()}),
            "age": scored.age,
            "progress": scored.progress,
        }
    )


def scored_record(text: str) -> Scored:
    """Return the score, weights and hyperparameters of what `scored_json` wrote."""
    raw = decode(text)
    if "criteria" in raw:
        raw["criteria"] = Criteria.from_json(raw["criteria"])
    return Scored(**raw)


def member_record(row: Row) -> Member:
    """Return the member of a row."""
    head = None if row[6] is None else scored_record(row[6])
    states = tuple([scored_record(text) for text in decode(row[7])])
    return Member(
        study=row[0],
        index=row[1],
        state=MEMBER_STATES[row[2]],
        progress=row[3],
        generation=row[4],
        decided_at=row[5],
        head=head,
        states=states,
        best=None if row[8] is None else scored_record(row[8]),
        current_trial=row[9],
        broken_trial=row[10],
        replacements=row[11],
        measures_left=row[12],
        slot=row[13],
        stops=row[14],
        retired=bool(row[15]),
        joined_steps=row[16],
        joined_generation=row[17],
    )


@final
class Members:
    """Records of members whose rows have not changed since they were last read; most of a population has not.

    Rows are compared, not versions, so it does not matter in which order transactions committed.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], tuple[Row, Member]] = {}

    def record(self, row: Row) -> Member:
        """Return the member of a row."""
        key = row[0], row[1]
        known = self._known.get(key)
        if known is not None and known[0] == row:
            return known[1]
        record = member_record(row)
        self._known[key] = row, record
        return record


def _head(member: Member, values: Values) -> None:
    values["head"] = None if member.head is None else scored_json(member.head)


def _states(member: Member, values: Values) -> None:
    values["states"] = encode([scored_json(state) for state in member.states])


def _best(member: Member, values: Values) -> None:
    values["best"] = None if member.best is None else scored_json(member.best)


def _member_state(member: Member, values: Values) -> None:
    values["state"] = member.state.value


_MEMBER_WRITERS: dict[str, Callable[[Member, Values], None]] = {
    "state": _member_state,
    "head": _head,
    "states": _states,
    "best": _best,
}


def member_values(member: Member, fields: Iterable[str] = MEMBER_FIELDS) -> Values:
    """Return the values of a member's fields by column."""
    values: Values = {}
    for field in fields:
        write = _MEMBER_WRITERS.get(field)
        if write is None:
            values[field] = getattr(member, field)
        else:
            write(member, values)
    return values


def trial_record(row: Row) -> TrialRecord:
    """Return the trial of a row."""
    order = row[23]
    fitness = row[22]
    return TrialRecord(
        id=row[0],
        study=row[1],
        member=row[2],
        generation=row[3],
        kind=TRIAL_KINDS[row[4]] if row[34] is None else TrialKind.IMPORT,
        state=TRIAL_STATES[row[5]],
        parent=row[6],
        parent_checkpoint=row[7],
        parent_index=row[8],
        jump_from=row[9],
        params_from=row[10],
        replaces=row[11],
        params=decode(row[12]),
        start_step=row[13],
        end_step=row[14],
        reached_step=row[15],
        seed=row[16],
        token=row[17],
        failures=row[18],
        progress=row[19],
        progress_step=row[20],
        exploited=bool(row[21]),
        fitness=math.nan if fitness is None and order is not None else fitness,
        order=order,
        metrics={} if row[24] == "{}" else decode(row[24]),
        checkpoint=row[25],
        checkpoint_index=row[26],
        reason=decode(row[27]),
        error=row[28],
        worker=row[29],
        created_at=row[30],
        started_at=row[31],
        ended_at=row[32],
        stop_reason=None if row[33] is None else decode(row[33]),
        origin=row[34],
        criteria=None if row[35] is None else Criteria.from_json(decode(row[35])),
        age=row[36],
    )


def _criteria(criteria: Criteria | None) -> str | None:
    return None if criteria is None else encode(criteria.to_json())


def _fitness(fitness: float | None) -> float | None:
    return None if fitness is None or math.isnan(fitness) else fitness


def _stop_reason(reason: JsonObject | None) -> str | None:
    return None if reason is None else encode(reason)


_TRIAL_WRITERS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "state": ("state", lambda state: state.value),
    "fitness": ("fitness", _fitness),
    "order": ("fitness_order", lambda order: order),
    "metrics": ("metrics", encode),
    "error": ("error", text),
    "stop_reason": ("stop_reason", _stop_reason),
    "criteria": ("criteria", _criteria),
}


def trial_changes(trial: TrialRecord, fields: Iterable[str] = TRIAL_FIELDS) -> Values:
    """Return the values of those fields of a trial that may change, by column."""
    values: Values = {}
    for field in fields:
        value = getattr(trial, field)
        writer = _TRIAL_WRITERS.get(field)
        if writer is None:
            values[field] = value
        else:
            values[writer[0]] = writer[1](value)
    return values


def trial_values(trial: TrialRecord) -> Values:
    """Return a trial by column."""
    return {
        "id": trial.id,
        "study": trial.study,
        "member": trial.member,
        "generation": trial.generation,
        "kind": (TrialKind.MEASURE if trial.kind is TrialKind.IMPORT else trial.kind).value,
        "state": trial.state.value,
        "parent": trial.parent,
        "parent_checkpoint": trial.parent_checkpoint,
        "parent_index": trial.parent_index,
        "jump_from": trial.jump_from,
        "params_from": trial.params_from,
        "replaces": trial.replaces,
        "params": encode(trial.params),
        "start_step": trial.start_step,
        "end_step": trial.end_step,
        "reached_step": trial.reached_step,
        "seed": trial.seed,
        "token": trial.token,
        "failures": trial.failures,
        "progress": trial.progress,
        "progress_step": trial.progress_step,
        "exploited": trial.exploited,
        "fitness": _fitness(trial.fitness),
        "fitness_order": trial.order,
        "metrics": encode(trial.metrics) if trial.metrics else "{}",
        "checkpoint": trial.checkpoint,
        "checkpoint_index": trial.checkpoint_index,
        "reason": encode(trial.reason),
        "error": text(trial.error),
        "worker": trial.worker,
        "created_at": trial.created_at,
        "started_at": trial.started_at,
        "ended_at": trial.ended_at,
        "stop_reason": _stop_reason(trial.stop_reason),
        "origin": text(trial.origin),
        "criteria": _criteria(trial.criteria),
        "age": trial.age,
    }


def attempt_record(row: Row) -> Attempt:
    """Return the attempt of a row."""
    return Attempt(
        trial=row[0],
        token=row[1],
        study=row[2],
        worker=row[3],
        state=ATTEMPT_STATES[row[4]],
        claimed_at=row[5],
        expires_at=row[6],
        ended_at=row[7],
        outcome=None if row[8] is None else decode(row[8]),
        error=row[9],
        tally=None if row[10] is None else tally_record(row[10]),
        timings=None if row[11] is None else decode(row[11]),
    )


def attempt_values(attempt: Attempt) -> Values:
    """Return an attempt by column."""
    return {
        "trial": attempt.trial,
        "token": attempt.token,
        "study": attempt.study,
        "worker": attempt.worker,
        "state": attempt.state.value,
        "claimed_at": attempt.claimed_at,
        "expires_at": attempt.expires_at,
        "ended_at": attempt.ended_at,
        "outcome": None if attempt.outcome is None else encode(attempt.outcome),
        "error": text(attempt.error),
        "tally": None if attempt.tally is None else tally_json(attempt.tally),
        "timings": None if attempt.timings is None else encode(attempt.timings),
    }


def tally_json(tally: Tally) -> str:
    """Return a tally as JSON."""
    part = tally.part
    known: list[Json] = [] if part is None else [part.step, part.metrics]
    return encode([tally.count, tally.mean, tally.best, tally.step, *known])


def tally_record(text: str) -> Tally:
    """Return the tally of what `tally_json` wrote."""
    count, mean, best, step, *known = decode(text)
    part = Report(*known) if known else None
    return Tally(count=count, mean=mean, best=best, step=step, part=part)


def checkpoint_record(row: Row) -> Checkpoint:
    """Return the checkpoint of a row."""
    return Checkpoint(
        study=row[0],
        name=row[1],
        trial=row[2],
        kind=CheckpointKind(row[3]),
        state=CheckpointState(row[4]) if row[10] is None else CheckpointState.DAMAGED,
        step=row[5],
        digest=row[6],
        size_bytes=row[7],
        created_at=row[8],
        taken=row[9],
        damage=row[10],
    )


def checkpoint_values(checkpoint: Checkpoint) -> Values:
    """Return a checkpoint by column."""
    return {
        "study": checkpoint.study,
        "name": checkpoint.name,
        "trial": checkpoint.trial,
        "kind": checkpoint.kind.value,
        "state": stored_state(checkpoint.state),
        "step": checkpoint.step,
        "digest": checkpoint.digest,
        "size_bytes": checkpoint.size_bytes,
        "created_at": checkpoint.created_at,
        "taken": checkpoint.taken,
        "damage": text(checkpoint.damage),
    }


def stored_state(state: CheckpointState) -> str:
    """Return the state of a checkpoint as it is stored: a damaged one is lost, and has its damage."""
    return (CheckpointState.LOST if state is CheckpointState.DAMAGED else state).value


def batch_json(reports: Iterable[Report]) -> str:
    """Return reports that were stored together as JSON: step and metrics of each."""
    return encode([[report.step, report.metrics] for report in reports])


def batch_records(batch: str) -> list[Report]:
    """Return the reports that were stored together."""
    return [Report(step, metrics) for step, metrics in decode(batch)]
