"""The schema: a table for each kind of record, whose columns are the record's fields.

Times are seconds since the epoch. Values other than numbers, booleans and text are JSON, stored as text on every
database. Statements repeat the condition of a partial index word for word, because SQLite proves nothing else. Its
columns are also in an index that is counted, because SQLite would otherwise scan every row.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from enum import Enum
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import sqlalchemy as sa

from phyla.records import (
    Attempt,
    Checkpoint,
    EvalEvent,
    EvalJob,
    EvalResult,
    Group,
    JobState,
    Json,
    Member,
    RunStart,
    StudyRecord,
    Token,
    TrialRecord,
)

metadata = sa.MetaData()

RUNNING = sa.text("state = 'running'")
LIVE = sa.text("state = 'live'")
KEPT = sa.text("kind <> 'seen'")
# Not as a range, which SQLite would search by number instead of by name.
EVALUATED = sa.text("number <> -1")
USABLE = sa.text("number <> -1 AND state IN ('live', 'ready')")
DELETING = sa.text("state = 'deleting'")
DAMAGED = sa.text("state = 'damaged'")
ENDED = sa.text("ended_at IS NOT NULL")
FINAL = sa.text("kind = 'final'")
RESULT = sa.text("state = 'completed' AND kind = 'train'")
SCORED = sa.text("state = 'completed' AND kind = 'train' AND fitness_order IS NOT NULL")
QUEUED = sa.text("state = 'queued'")
FRESH = sa.text("state = 'queued' AND priority = 1 AND coalesce(guaranteed, '') <> 'fitness'")
STARTED = sa.text("state = 'queued' AND started")
GUARANTEED = sa.text("state = 'queued' AND guaranteed IS NOT NULL")
TAKEN_ON = sa.text("state <> 'skipped'")
BEST = sa.text("best")
# A final measures candidates of one member at the same time.
MEMBERS_UNFINISHED = sa.text("ended_at IS NULL AND group_id IS NULL AND kind <> 'final'")
# By the group: of conditions on the member SQLite would make a search of `jobs_by_member`.
TRIAL = sa.text("group_id IS NULL")
PENDING_TRIAL = sa.text("state = 'pending' AND group_id IS NULL")
UNFINISHED_TRIAL = sa.text("ended_at IS NULL AND group_id IS NULL")
ENDED_TRIAL = sa.text("ended_at IS NOT NULL AND group_id IS NULL")
EVALUATION = sa.text("group_id IS NOT NULL")
PENDING_EVALUATION = sa.text("state = 'pending' AND group_id IS NOT NULL")
UNFINISHED_EVALUATION = sa.text("ended_at IS NULL AND group_id IS NOT NULL")
WANTED_SHARD = sa.text("kind = 'evaluate' AND state <> 'cancelled'")
FAILED_EVALUATION = sa.text("state = 'failed' AND kind = 'evaluate' AND token > 0")
OPEN_AGGREGATION = sa.text("kind = 'aggregate' AND ended_at IS NULL")

URGENCY = ("priority", "rank", "group", "id", "not_before", "gpus", "label")

job_ids = sa.Sequence("job_ids", metadata=metadata, data_type=sa.BigInteger)


def without_none(kind: Any) -> Any:
    """Return a type without its None, and without annotations."""
    kind = getattr(kind, "__origin__", kind) if get_origin(kind) is Annotated else kind
    kinds = [item for item in get_args(kind) if item is not NoneType]
    return kinds[0] if get_origin(kind) in (Union, UnionType) and len(kinds) == 1 else kind


def _one_of(column: str, values: Iterable[Enum]) -> str:
    return f"{column} IN ({', '.join(repr(value.value) for value in values)})"


def _index(
    name: str, *columns: "str | sa.TextClause", where: sa.TextClause | None = None, unique: bool = False
) -> sa.Index:
    # Naming the dialect of PostgreSQL here would import it in every process; see `schema.create`.
    return sa.Index(name, *columns, unique=unique, sqlite_where=where)


def _type(kind: Any) -> Any:
    if kind is bool:
        return sa.Boolean(create_constraint=False)
    return {int: sa.BigInteger(), float: sa.Double()}.get(kind) or sa.Text()


def _table(
    name: str,
    kinds: Sequence[Any],
    *parts: sa.Index | sa.CheckConstraint,
    key: tuple[str, ...] = ("id",),
    called: Mapping[str, str] | None = None,
    refers: Mapping[str, str] | None = None,
    **options: Any,
) -> sa.Table:
    """Make the table of one kind of record, or of several.

    Args:
        name: of the table.
        kinds: the dataclasses; a column that only some of them have is NULL in the rows of the others.
        parts: indexes and further constraints.
        key: the fields of the primary key; an `id` is given by the database.
        called: names of columns that are not called like their field, which is their key.
        refers: what columns refer to, by field.
        options: of the databases.
    """
    columns: list[sa.Column[Any]] = []
    checks: list[sa.CheckConstraint] = []
    for field, declared in {entry.name: entry.type for kind in kinds for entry in fields(kind)}.items():
        column, kind = (called or {}).get(field, field), without_none(declared)
        everywhere = all(field in {entry.name for entry in fields(record)} for record in kinds)
        # Only this type makes SQLite use its row id as the key.
        arguments: list[Any] = [
            sa.BigInteger().with_variant(sa.Integer(), "sqlite") if field == "id" else _type(kind)
        ]
        if field == "id" and name == "jobs":
            arguments.append(job_ids)
        if refers and field in refers:
            arguments.append(sa.ForeignKey(refers[field], name=f"{name}_{column.removesuffix('_id')}"))
        nullable = declared == Json or NoneType in get_args(declared) or not everywhere
        columns.append(sa.Column(column, *arguments, key=field, autoincrement=field == "id", nullable=nullable))
        if isinstance(kind, type) and issubclass(kind, Enum):
            checks.append(sa.CheckConstraint(_one_of(column, kind), name=f"{name}_{column}"))
    return sa.Table(name, metadata, *columns, sa.PrimaryKeyConstraint(*key), *checks, *parts, **options)


store_identity = sa.Table(
    "store_identity",
    metadata,
    # There is one row at most.
    sa.Column("slot", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("id", sa.Text, nullable=False),
    # Where the database was when it got its id: a copy is somewhere else.
    sa.Column("place", sa.Text, nullable=False),
    sa.Column("copied_from", sa.Text),
    sa.CheckConstraint("slot = 1", name="store_identity_one"),
)

studies = _table(
    "studies",
    [StudyRecord],
    sa.CheckConstraint("(kind = 'study') = (source IS NOT NULL)", name="studies_has_source"),
    _index("studies_by_name", "name", unique=True),
    _index("studies_by_source", "source"),
    refers={"source": "studies.id"},
    sqlite_autoincrement=True,
)

members = _table(
    "members",
    [Member],
    sa.CheckConstraint("state <> 'running' OR current_trial IS NOT NULL", name="members_running_has_trial"),
    key=("study", "index"),
    called={"index": "member"},
    refers={"study": "studies.id"},
)

# NULL beside a fitness_order stands for nan, which SQLite cannot store.
jobs = _table(
    "jobs",
    [TrialRecord, EvalJob],
    sa.CheckConstraint(
        "(ended_at IS NULL) = (" + _one_of("state", (JobState.PENDING, JobState.RUNNING)) + ")", name="jobs_ended"
    ),
    sa.CheckConstraint("(member IS NULL) <> (group_id IS NULL)", name="jobs_member_or_group"),
    sa.CheckConstraint(
        "member IS NULL OR (generation IS NOT NULL AND params IS NOT NULL AND start_step IS NOT NULL "
        "AND end_step IS NOT NULL AND age IS NOT NULL AND seed IS NOT NULL AND reason IS NOT NULL)",
        name="jobs_whole_trial",
    ),
    sa.CheckConstraint(
        "group_id IS NULL OR (seen IS NOT NULL AND task IS NOT NULL AND identity IS NOT NULL "
        "AND shard IS NOT NULL AND shards IS NOT NULL AND priority IS NOT NULL AND rank IS NOT NULL "
        "AND not_before IS NOT NULL AND max_attempts IS NOT NULL AND gpus IS NOT NULL AND label IS NOT NULL)",
        name="jobs_whole_evaluation",
    ),
    sa.CheckConstraint("fitness IS NULL OR fitness_order IS NOT NULL", name="jobs_fitness"),
    _index("trials_by_study", "study", "id", where=TRIAL),
    # Also serves eval jobs, which have no member, and searches for references to a study.
    _index("jobs_by_member", "study", "member", "id"),
    _index("trials_one_unfinished", "study", "member", where=MEMBERS_UNFINISHED, unique=True),
    _index("trials_unfinished", "study", where=UNFINISHED_TRIAL),
    _index("trials_final", "study", "id", where=FINAL),
    _index("trials_pending", "study", "id", where=PENDING_TRIAL),
    _index("trials_ended_at", "study", "state", "ended_at", where=ENDED_TRIAL),
    _index("trials_generation", "study", "generation", "order", "state", "kind", where=SCORED),
    _index("trials_best", "study", sa.text("fitness_order DESC"), "id", where=RESULT),
    _index("eval_jobs_by_group", "group", "id", where=EVALUATION),
    _index("eval_jobs_key", "group", "task", "shard", "identity", where=WANTED_SHARD, unique=True),
    _index("eval_jobs_one_aggregation", "group", where=OPEN_AGGREGATION, unique=True),
    _index("eval_jobs_unfinished", "group", "ended_at", where=UNFINISHED_EVALUATION),
    _index("eval_jobs_pending", "study", *URGENCY, where=PENDING_EVALUATION),
    _index("eval_jobs_held", "study", "seen", *URGENCY, where=PENDING_EVALUATION),
    _index("eval_jobs_failed", "study", "ended_at", "id", where=FAILED_EVALUATION),
    _index("eval_jobs_not_before", "study", "not_before", where=PENDING_EVALUATION),
    called={"order": "fitness_order", "group": "group_id"},
    refers={"study": "studies.id", "group": "eval_groups.id"},
    sqlite_autoincrement=True,
)

attempts = _table(
    "attempts",
    [Attempt],
    sa.CheckConstraint("(ended_at IS NULL) = (state = 'running')", name="attempts_ended"),
    # Also serves searches by worker: at most one row per worker.
    _index("attempts_one_running", "study", "job", where=RUNNING, unique=True),
    _index("attempts_expiry", "study", "expires_at", "job", where=RUNNING),
    key=("job", "token"),
    refers={"job": "jobs.id"},
    sqlite_with_rowid=False,
)

checkpoints = _table(
    "checkpoints",
    [Checkpoint],
    _index("checkpoints_kept", "study", "name", where=KEPT, unique=True),
    _index("checkpoints_number", "study", "number", where=EVALUATED, unique=True),
    # Also serves joins by name, and searches for references to a study.
    _index("checkpoints_by_name", "study", "name", "index", "id"),
    _index("checkpoints_live", "study", "created_at", "trial", "name", where=LIVE),
    _index("checkpoints_deleting", "study", "created_at", "trial", "name", where=DELETING),
    _index("checkpoints_damaged", "study", "created_at", "trial", "name", where=DAMAGED),
    _index("checkpoints_evaluated", "study", "id", where=EVALUATED),
    _index("checkpoints_by_identity", "identity", "study", where=EVALUATED),
    _index("checkpoints_usable", "study", "number", where=USABLE),
    _index("checkpoints_by_step", "study", "branch", "step", "number", where=EVALUATED),
    called={"index": "place"},
    refers={"study": "studies.id"},
)

reports = sa.Table(
    "reports",
    metadata,
    sa.Column("study", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("trial", sa.ForeignKey("jobs.id", name="reports_trial"), primary_key=True, autoincrement=False),
    sa.Column("token", sa.Integer, primary_key=True, autoincrement=False),
    # The number of the last report of the batch, within the attempt.
    sa.Column("seq", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("batch", sa.Text, nullable=False),
    _index("reports_by_trial", "trial"),
    sqlite_with_rowid=False,
)

marks = sa.Table(
    "marks",
    metadata,
    sa.Column("study", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("every", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("step", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("trial", sa.ForeignKey("jobs.id", name="marks_trial"), primary_key=True, autoincrement=False),
    # NULL stands for nan, which SQLite cannot store.
    sa.Column("average", sa.Double),
    _index("marks_by_trial", "trial"),
    sqlite_with_rowid=False,
)

eval_groups = _table(
    "eval_groups",
    [Group],
    sa.CheckConstraint("(ended_at IS NULL) = (state = 'queued')", name="eval_groups_ended"),
    sa.CheckConstraint("NOT best OR state = 'complete'", name="eval_groups_best_is_complete"),
    _index("eval_groups_key", "seen", "suite", "replicate", unique=True),
    _index("eval_groups_by_study", "study", "id"),
    _index("eval_groups_by_suite", "study", "suite", "id"),
    _index("eval_groups_queued", "study", "seen", "state", where=QUEUED),
    _index("eval_groups_fresh", "study", "suite", "id", where=FRESH),
    _index("eval_groups_started", "study", "suite", "seen", where=STARTED),
    _index("eval_groups_guaranteed", "study", "guaranteed", "seen", where=GUARANTEED),
    _index("eval_groups_taken_on", "study", "suite", "created_at", where=TAKEN_ON),
    _index("eval_groups_ended_at", "study", "suite", "state", "ended_at", where=ENDED),
    _index("eval_groups_ended_since", "study", "ended_at", "id", where=ENDED),
    _index("eval_groups_one_best", "study", "suite", where=BEST, unique=True),
    called={"values": "aggregates"},
    refers={"study": "studies.id", "seen": "checkpoints.id"},
)

# Its key has no study: results of a checkpoint serve every study with the same checkpoint.
eval_results = _table(
    "eval_results",
    [EvalResult],
    _index("eval_results_by_study", "study"),
    _index("eval_results_durations", "task_identity", "created_at", "duration_s"),
    key=("identity", "task_identity", "replicate", "shards", "shard"),
)

eval_events = _table(
    "eval_events",
    [EvalEvent],
    _index("eval_events_by_study", "study", "id"),
    refers={"study": "studies.id"},
)

starts = _table(
    "starts",
    [RunStart],
    _index("starts_by_study", "study", "id"),
    refers={"study": "studies.id"},
)

tokens = _table("tokens", [Token], key=("name",))

ONE_STUDY = sa.select(studies).where(studies.c.id == sa.bindparam("study", type_=sa.BigInteger))
