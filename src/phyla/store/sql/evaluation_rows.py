"""Records of evaluation to rows and back; see `phyla.store.sql.rows`."""

from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any, final

from phyla.records import (
    EvalAttempt,
    EvalEvent,
    EvalResult,
    EvalTaskKind,
    EvalTaskRecord,
    Group,
    GroupState,
    RunKind,
    RunRecord,
    RunState,
    Seen,
    SeenState,
    restored,
    storable,
)
from phyla.store.sql.codec import decode, encode
from phyla.store.sql.rows import ATTEMPT_STATES, TRIAL_STATES, Row, Values, text

SEEN_STATES = {state.value: state for state in SeenState}
GROUP_STATES = {state.value: state for state in GroupState}
TASK_KINDS = {kind.value: kind for kind in EvalTaskKind}

GROUP_FIELDS = (
    "state",
    "priority",
    "rank",
    "guaranteed",
    "started",
    "best",
    "why",
    "values",
    "not_before",
    "ended_at",
)
"""Fields of a group that may change; the others say what it is."""
TASK_FIELDS = (
    "state",
    "priority",
    "rank",
    "not_before",
    "token",
    "failures",
    "reused",
    "worker",
    "error",
    "started_at",
    "ended_at",
)
"""Fields of an eval task that may change; the others say what it is."""

_group_fields = attrgetter(*GROUP_FIELDS)
_task_fields = attrgetter(*TASK_FIELDS)


def changed_group(old: Group, new: Group) -> tuple[str, ...]:
    """Return the fields that may change whose values are other objects than before."""
    pairs = zip(GROUP_FIELDS, _group_fields(old), _group_fields(new), strict=True)
    return tuple([field for field, before, after in pairs if before is not after])


def changed_task(old: EvalTaskRecord, new: EvalTaskRecord) -> tuple[str, ...]:
    """Return the fields that may change whose values are other objects than before."""
    pairs = zip(TASK_FIELDS, _task_fields(old), _task_fields(new), strict=True)
    return tuple([field for field, before, after in pairs if before is not after])


def columns(fields: Iterable[str]) -> list[str]:
    """Return the columns that hold fields."""
    return ["aggregates" if field == "values" else field for field in fields]


_WRITERS: dict[str, Callable[[Any], Any]] = {
    "state": lambda state: state.value,
    "values": lambda values: encode(values) if values else "{}",
    "why": text,
    "error": text,
}


def changes(record: Group | EvalTaskRecord, fields: Iterable[str]) -> Values:
    """Return the values of fields that may change, by column."""
    values: Values = {}
    for field in fields:
        value = getattr(record, field)
        writer = _WRITERS.get(field)
        values["aggregates" if field == "values" else field] = value if writer is None else writer(value)
    return values


def run_record(row: Row) -> RunRecord:
    """Return the run of a row."""
    return RunRecord(
        id=row[0],
        name=row[1],
        kind=RunKind(row[2]),
        study=row[3],
        location=restored(row[4]),
        state=RunState(row[5]),
        config=decode(row[6]),
        created_at=row[7],
        message=row[8],
    )


@final
class Runs:
    """Records of runs whose rows have not changed since they were last read; configurations are long."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Row, RunRecord]] = {}

    def record(self, row: Row | None) -> RunRecord | None:
        """Return the run of a row, if there is one."""
        if row is None:
            return None
        known = self._known.get(row[0])
        if known is not None and known[0] == row:
            return known[1]
        record = run_record(row)
        self._known[record.id] = row, record
        return record


def seen_record(row: Row) -> Seen:
    """Return the checkpoint of a row."""
    return Seen(
        id=row[0],
        run=row[1],
        number=row[2],
        name=restored(row[3]),
        index=row[4],
        step=row[5],
        branch=row[6],
        state=SEEN_STATES[row[7]],
        identity=row[8],
        weak=bool(row[9]),
        fingerprint=row[10],
        path=restored(row[11]),
        paths=tuple(decode(row[12])),
        snapshot=bool(row[13]),
        size_bytes=row[14],
        trial=row[15],
        error=row[16],
        seen_at=row[17],
        written_at=row[18],
    )


def seen_values(seen: Seen) -> Values:
    """Return a checkpoint by column, without its id."""
    return {
        "run": seen.run,
        "number": seen.number,
        "name": storable(seen.name),
        "place": seen.index,
        "step": seen.step,
        "branch": seen.branch,
        "state": seen.state.value,
        "identity": seen.identity,
        "weak": seen.weak,
        "fingerprint": seen.fingerprint,
        "path": storable(seen.path),
        "paths": encode(list(seen.paths)) if seen.paths else "[]",
        "snapshot": seen.snapshot,
        "size_bytes": seen.size_bytes,
        "trial": seen.trial,
        "error": text(seen.error),
        "seen_at": seen.seen_at,
        "written_at": seen.written_at,
    }


def group_record(row: Row) -> Group:
    """Return the group of a row."""
    return Group(
        id=row[0],
        run=row[1],
        suite=row[2],
        seen=row[3],
        replicate=row[4],
        state=GROUP_STATES[row[5]],
        priority=row[6],
        rank=row[7],
        guaranteed=row[8],
        started=bool(row[9]),
        best=bool(row[10]),
        study=row[11],
        trial=row[12],
        member=row[13],
        why=row[14],
        values={} if row[15] == "{}" else decode(row[15]),
        created_at=row[16],
        not_before=row[17],
        ended_at=row[18],
    )


def group_values(group: Group) -> Values:
    """Return a group by column, without its id."""
    return {
        "run": group.run,
        "suite": group.suite,
        "seen": group.seen,
        "replicate": group.replicate,
        "study": group.study,
        "trial": group.trial,
        "member": group.member,
        "created_at": group.created_at,
        **changes(group, GROUP_FIELDS),
    }


def task_record(row: Row) -> EvalTaskRecord:
    """Return the eval task of a row."""
    return EvalTaskRecord(
        id=row[0],
        run=row[1],
        group=row[2],
        seen=row[3],
        task=row[4],
        kind=TASK_KINDS[row[5]],
        identity=row[6],
        replicate=row[7],
        shard=row[8],
        shards=row[9],
        state=TRIAL_STATES[row[10]],
        priority=row[11],
        rank=row[12],
        not_before=row[13],
        token=row[14],
        failures=row[15],
        max_attempts=row[16],
        timeout_s=row[17],
        reused=bool(row[18]),
        worker=row[19],
        error=row[20],
        created_at=row[21],
        started_at=row[22],
        ended_at=row[23],
    )


def task_values(task: EvalTaskRecord) -> Values:
    """Return an eval task by column, without its id."""
    return {
        "run": task.run,
        "group_id": task.group,
        "seen": task.seen,
        "task": task.task,
        "kind": task.kind.value,
        "identity": task.identity,
        "replicate": task.replicate,
        "shard": task.shard,
        "shards": task.shards,
        "max_attempts": task.max_attempts,
        "timeout_s": task.timeout_s,
        "created_at": task.created_at,
        **changes(task, TASK_FIELDS),
    }


def eval_attempt_record(row: Row) -> EvalAttempt:
    """Return the attempt of a row."""
    return EvalAttempt(
        task=row[0],
        token=row[1],
        run=row[2],
        worker=row[3],
        state=ATTEMPT_STATES[row[4]],
        claimed_at=row[5],
        expires_at=row[6],
        ended_at=row[7],
        error=row[8],
    )


def eval_attempt_values(attempt: EvalAttempt) -> Values:
    """Return an attempt by column."""
    return {
        "task": attempt.task,
        "token": attempt.token,
        "run": attempt.run,
        "worker": attempt.worker,
        "state": attempt.state.value,
        "claimed_at": attempt.claimed_at,
        "expires_at": attempt.expires_at,
        "ended_at": attempt.ended_at,
        "error": text(attempt.error),
    }


def result_record(row: Row) -> EvalResult:
    """Return the result of a row."""
    return EvalResult(
        identity=row[0],
        task_identity=row[1],
        replicate=row[2],
        shards=row[3],
        shard=row[4],
        run=row[5],
        statistics=decode(row[6]),
        files={} if row[7] == "{}" else decode(row[7]),
        source=row[8],
        duration_s=row[9],
        load_s=row[10],
        worker=row[11],
        created_at=row[12],
    )


def result_values(result: EvalResult) -> Values:
    """Return a result by column."""
    return {
        "identity": result.identity,
        "task_identity": result.task_identity,
        "replicate": result.replicate,
        "shards": result.shards,
        "shard": result.shard,
        "run": result.run,
        "statistics": encode(result.statistics),
        "files": encode(result.files) if result.files else "{}",
        "source": result.source,
        "duration_s": result.duration_s,
        "load_s": result.load_s,
        "worker": result.worker,
        "created_at": result.created_at,
    }


def event_record(row: Row) -> EvalEvent:
    """Return the event of a row."""
    return EvalEvent(
        id=row[0],
        run=row[1],
        kind=row[2],
        seen=row[3],
        suite=row[4],
        message=row[5],
        data=decode(row[6]),
        created_at=row[7],
    )


def event_values(event: EvalEvent) -> Values:
    """Return an event by column, without its id."""
    return {
        "run": event.run,
        "kind": event.kind,
        "seen": event.seen,
        "suite": event.suite,
        "message": text(event.message),
        "data": encode(event.data),
        "created_at": event.created_at,
    }
