"""The schema.

Times are seconds since the epoch. Columns that hold JSON are text on every database, written and read
by `phyla.store.sql.codec`. What a partial index is conditioned on appears word for word in the
statements that use it, because SQLite proves nothing else. Its columns are also in an index that is counted,
because SQLite would else look at every row.
"""

from collections.abc import Iterable
from enum import StrEnum

import sqlalchemy as sa

from phyla.records import (
    AttemptState,
    CheckpointKind,
    CheckpointState,
    GroupState,
    JobKind,
    JobState,
    MemberState,
    SeenState,
    StudyKind,
    StudyState,
)

metadata = sa.MetaData()

READY = sa.text("state = 'ready'")
RUNNING = sa.text("state = 'running'")
LIVE = sa.text("state = 'live'")
DELETING = sa.text("state = 'deleting'")
DAMAGED = sa.text("state = 'damaged'")
ENDED = sa.text("ended_at IS NOT NULL")
RESULT = sa.text("state = 'completed' AND kind = 'train'")
SCORED = sa.text("state = 'completed' AND kind = 'train' AND fitness_order IS NOT NULL")
QUEUED = sa.text("state = 'queued'")
FRESH = sa.text("state = 'queued' AND priority = 1 AND coalesce(guaranteed, '') <> 'fitness'")
STARTED = sa.text("state = 'queued' AND started")
GUARANTEED = sa.text("state = 'queued' AND guaranteed IS NOT NULL")
TAKEN_ON = sa.text("state <> 'skipped'")
BEST = sa.text("best")
# By the group: of conditions on the member SQLite would make a search of `jobs_by_member`.
TRIAL = sa.text("group_id IS NULL")
PENDING_TRIAL = sa.text("state = 'pending' AND group_id IS NULL")
UNFINISHED_TRIAL = sa.text("ended_at IS NULL AND group_id IS NULL")
ENDED_TRIAL = sa.text("ended_at IS NOT NULL AND group_id IS NULL")
EVALUATION = sa.text("group_id IS NOT NULL")
PENDING_EVALUATION = sa.text("state = 'pending' AND group_id IS NOT NULL")
UNFINISHED_EVALUATION = sa.text("ended_at IS NULL AND group_id IS NOT NULL")
WANTED_SHARD = sa.text("kind = 'evaluate' AND state <> 'cancelled'")
URGENCY = ("priority", "rank", "group", "id", "not_before")
OPEN_AGGREGATION = sa.text("kind = 'aggregate' AND ended_at IS NULL")


def _one_of(column: str, values: Iterable[StrEnum]) -> str:
    return f"{column} IN ({', '.join(repr(value.value) for value in values)})"


def _index(
    name: str, *columns: "str | sa.TextClause", where: sa.TextClause | None = None, unique: bool = False
) -> sa.Index:
    return sa.Index(name, *columns, unique=unique, sqlite_where=where, postgresql_where=where)


def _key(name: str, *sequence: sa.Sequence) -> "sa.Column[int]":
    # Only this type makes SQLite use its row id as the key.
    return sa.Column(name, sa.BigInteger().with_variant(sa.Integer(), "sqlite"), *sequence, primary_key=True)


job_ids = sa.Sequence("job_ids", metadata=metadata, data_type=sa.BigInteger)

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

studies = sa.Table(
    "studies",
    metadata,
    _key("id"),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("config", sa.Text, nullable=False),
    sa.Column("seed", sa.BigInteger, nullable=False),
    sa.Column("population_size", sa.Integer, nullable=False),
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Column("strategy_state", sa.Text),
    sa.Column("state_version", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("message", sa.Text),
    sa.Column("resumed_at", sa.Double),
    sa.Column("location", sa.Text, nullable=False),
    sa.Column("source", sa.ForeignKey("studies.id", name="studies_source")),
    sa.UniqueConstraint("name", name="studies_name"),
    sa.CheckConstraint(_one_of("kind", StudyKind), name="studies_kind"),
    sa.CheckConstraint(_one_of("state", StudyState), name="studies_state"),
    sa.CheckConstraint("(kind = 'study') = (source IS NOT NULL)", name="studies_has_source"),
    _index("studies_by_source", "source"),
    sqlite_autoincrement=True,
)

members = sa.Table(
    "members",
    metadata,
    sa.Column("study", sa.ForeignKey("studies.id", name="members_study"), primary_key=True),
    sa.Column("member", sa.Integer, primary_key=True, autoincrement=False, key="index"),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("progress", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("generation", sa.Integer, nullable=False, server_default="0"),
    sa.Column("decided_at", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("head", sa.Text),
    sa.Column("states", sa.Text, nullable=False, server_default="[]"),
    sa.Column("best", sa.Text),
    sa.Column("current_trial", sa.BigInteger),
    sa.Column("broken_trial", sa.BigInteger),
    sa.Column("replacements", sa.Integer, nullable=False, server_default="0"),
    sa.Column("measures_left", sa.Integer, nullable=False, server_default="0"),
    sa.Column("slot", sa.Text),
    sa.Column("stops", sa.Integer, nullable=False, server_default="0"),
    sa.Column("retired", sa.Boolean(create_constraint=False), nullable=False, server_default=sa.false()),
    sa.Column("joined_steps", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("joined_generation", sa.Integer, nullable=False, server_default="0"),
    sa.CheckConstraint(_one_of("state", MemberState), name="members_state"),
    sa.CheckConstraint("state <> 'running' OR current_trial IS NOT NULL", name="members_running_has_trial"),
)

jobs = sa.Table(
    "jobs",
    metadata,
    # What every job has.
    _key("id", job_ids),
    sa.Column("study", sa.ForeignKey("studies.id", name="jobs_study"), nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("token", sa.Integer, nullable=False),
    sa.Column("failures", sa.Integer, nullable=False),
    sa.Column("worker", sa.Text),
    sa.Column("error", sa.Text),
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Column("started_at", sa.Double),
    sa.Column("ended_at", sa.Double),
    # What a trial has.
    sa.Column("member", sa.Integer),
    sa.Column("generation", sa.Integer),
    sa.Column("parent", sa.BigInteger),
    sa.Column("parent_checkpoint", sa.Text),
    sa.Column("parent_index", sa.Integer),
    sa.Column("jump_from", sa.BigInteger),
    sa.Column("params_from", sa.BigInteger),
    sa.Column("replaces", sa.BigInteger),
    sa.Column("params", sa.Text),
    sa.Column("start_step", sa.BigInteger),
    sa.Column("end_step", sa.BigInteger),
    sa.Column("reached_step", sa.BigInteger),
    sa.Column("seed", sa.BigInteger),
    sa.Column("progress", sa.Text),
    sa.Column("progress_step", sa.BigInteger),
    sa.Column("exploited", sa.Boolean(create_constraint=False)),
    # NULL beside a fitness_order stands for nan, which SQLite cannot store.
    sa.Column("fitness", sa.Double),
    sa.Column("fitness_order", sa.Double, key="order"),
    sa.Column("metrics", sa.Text),
    sa.Column("checkpoint", sa.Text),
    sa.Column("checkpoint_index", sa.Integer),
    sa.Column("reason", sa.Text),
    sa.Column("stop_reason", sa.Text),
    sa.Column("origin", sa.Text),
    sa.Column("criteria", sa.Text),
    sa.Column("age", sa.BigInteger),
    # What a shard of an eval task, or an aggregation, has.
    sa.Column("group_id", sa.ForeignKey("eval_groups.id", name="jobs_group"), key="group"),
    sa.Column("seen", sa.BigInteger),
    sa.Column("task", sa.Text),
    sa.Column("identity", sa.Text),
    sa.Column("replicate", sa.Integer),
    sa.Column("shard", sa.Integer),
    sa.Column("shards", sa.Integer),
    sa.Column("priority", sa.Integer),
    sa.Column("rank", sa.Double),
    sa.Column("not_before", sa.Double),
    sa.Column("max_attempts", sa.Integer),
    sa.Column("timeout_s", sa.Double),
    sa.Column("reused", sa.Boolean(create_constraint=False)),
    sa.CheckConstraint(_one_of("kind", JobKind), name="jobs_kind"),
    sa.CheckConstraint(_one_of("state", JobState), name="jobs_state"),
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
        "AND not_before IS NOT NULL AND max_attempts IS NOT NULL)",
        name="jobs_whole_evaluation",
    ),
    sa.CheckConstraint("fitness IS NULL OR fitness_order IS NOT NULL", name="jobs_fitness"),
    _index("trials_by_study", "study", "id", where=TRIAL),
    # Also serves eval jobs, which have no member, and whoever looks for what refers to a study.
    _index("jobs_by_member", "study", "member", "id"),
    _index("trials_one_unfinished", "study", "member", where=UNFINISHED_TRIAL, unique=True),
    _index("trials_pending", "study", "id", where=PENDING_TRIAL),
    _index("trials_ended_at", "study", "state", "ended_at", where=ENDED_TRIAL),
    _index("trials_generation", "study", "generation", "order", "state", "kind", where=SCORED),
    _index("trials_best", "study", sa.text("fitness_order DESC"), "id", where=RESULT),
    _index("eval_jobs_by_group", "group", "id", where=EVALUATION),
    _index("eval_jobs_key", "group", "task", "shard", "identity", where=WANTED_SHARD, unique=True),
    _index("eval_jobs_one_aggregation", "group", where=OPEN_AGGREGATION, unique=True),
    _index("eval_jobs_unfinished", "group", "ended_at", where=UNFINISHED_EVALUATION),
    _index(
        "eval_jobs_pending", "study", "priority", "rank", "group", "id", "not_before", where=PENDING_EVALUATION
    ),
    _index(
        "eval_jobs_held",
        "study",
        "seen",
        "priority",
        "rank",
        "group",
        "id",
        "not_before",
        where=PENDING_EVALUATION,
    ),
    _index("eval_jobs_not_before", "study", "not_before", where=PENDING_EVALUATION),
    sqlite_autoincrement=True,
)

attempts = sa.Table(
    "attempts",
    metadata,
    sa.Column("job", sa.ForeignKey("jobs.id", name="attempts_job"), primary_key=True, autoincrement=False),
    sa.Column("token", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("study", sa.BigInteger, nullable=False),
    sa.Column("worker", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("claimed_at", sa.Double, nullable=False),
    sa.Column("expires_at", sa.Double, nullable=False),
    sa.Column("ended_at", sa.Double),
    sa.Column("outcome", sa.Text),
    sa.Column("error", sa.Text),
    sa.Column("tally", sa.Text),
    sa.Column("timings", sa.Text),
    sa.CheckConstraint(_one_of("state", AttemptState), name="attempts_state"),
    sa.CheckConstraint("(ended_at IS NULL) = (state = 'running')", name="attempts_ended"),
    # Also serves those who look for a worker's: as many rows as there are workers, at most.
    _index("attempts_one_running", "study", "job", where=RUNNING, unique=True),
    _index("attempts_expiry", "study", "expires_at", "job", where=RUNNING),
    sqlite_with_rowid=False,
)

checkpoints = sa.Table(
    "checkpoints",
    metadata,
    sa.Column("study", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("trial", sa.ForeignKey("jobs.id", name="checkpoints_trial"), nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("step", sa.BigInteger, nullable=False),
    sa.Column("digest", sa.Text, nullable=False),
    sa.Column("size_bytes", sa.BigInteger, nullable=False),
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Column("taken", sa.Integer, nullable=False),
    sa.Column("damage", sa.Text),
    sa.CheckConstraint(_one_of("kind", CheckpointKind), name="checkpoints_kind"),
    sa.CheckConstraint(_one_of("state", CheckpointState), name="checkpoints_state"),
    _index("checkpoints_by_trial", "trial"),
    _index("checkpoints_live", "study", "created_at", "trial", "name", where=LIVE),
    _index("checkpoints_deleting", "study", "created_at", "trial", "name", where=DELETING),
    _index("checkpoints_damaged", "study", "created_at", "trial", "name", where=DAMAGED),
    sqlite_with_rowid=False,
)

reports = sa.Table(
    "reports",
    metadata,
    sa.Column("study", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("trial", sa.ForeignKey("jobs.id", name="reports_trial"), primary_key=True, autoincrement=False),
    sa.Column("token", sa.Integer, primary_key=True, autoincrement=False),
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

seen_checkpoints = sa.Table(
    "seen_checkpoints",
    metadata,
    _key("id"),
    sa.Column("study", sa.ForeignKey("studies.id", name="seen_checkpoints_study"), nullable=False),
    sa.Column("number", sa.BigInteger, nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("place", sa.Integer, nullable=False, key="index"),
    sa.Column("step", sa.BigInteger, nullable=False),
    sa.Column("branch", sa.Integer, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("identity", sa.Text, nullable=False),
    sa.Column("weak", sa.Boolean(create_constraint=False), nullable=False),
    sa.Column("fingerprint", sa.Text, nullable=False),
    sa.Column("path", sa.Text, nullable=False),
    sa.Column("paths", sa.Text, nullable=False),
    sa.Column("snapshot", sa.Boolean(create_constraint=False), nullable=False),
    sa.Column("size_bytes", sa.BigInteger, nullable=False),
    sa.Column("trial", sa.BigInteger),
    sa.Column("error", sa.Text),
    sa.Column("seen_at", sa.Double, nullable=False),
    sa.Column("written_at", sa.Double, nullable=False),
    sa.CheckConstraint(_one_of("state", SeenState), name="seen_checkpoints_state"),
    _index("seen_checkpoints_by_study", "study", "id"),
    _index("seen_checkpoints_by_name", "study", "name", "index", "id"),
    _index("seen_checkpoints_number", "study", "number", unique=True),
    _index("seen_checkpoints_by_identity", "identity", "study"),
    _index("seen_checkpoints_ready", "study", "number", where=READY),
)

eval_groups = sa.Table(
    "eval_groups",
    metadata,
    _key("id"),
    sa.Column("study", sa.ForeignKey("studies.id", name="eval_groups_study"), nullable=False),
    sa.Column("suite", sa.Text, nullable=False),
    sa.Column("seen", sa.ForeignKey("seen_checkpoints.id", name="eval_groups_seen"), nullable=False),
    sa.Column("replicate", sa.Integer, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("priority", sa.Integer, nullable=False),
    sa.Column("rank", sa.Double, nullable=False),
    sa.Column("guaranteed", sa.Text),
    sa.Column("started", sa.Boolean(create_constraint=False), nullable=False),
    sa.Column("best", sa.Boolean(create_constraint=False), nullable=False),
    sa.Column("trial", sa.BigInteger),
    sa.Column("member", sa.Integer),
    sa.Column("why", sa.Text),
    sa.Column("aggregates", sa.Text, nullable=False, key="values"),
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Column("not_before", sa.Double, nullable=False),
    sa.Column("ended_at", sa.Double),
    sa.CheckConstraint(_one_of("state", GroupState), name="eval_groups_state"),
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
    _index("eval_groups_one_best", "study", "suite", where=BEST, unique=True),
)

# Its key has no study: what was found on a checkpoint is known to every study that meets the same one.
eval_results = sa.Table(
    "eval_results",
    metadata,
    sa.Column("identity", sa.Text, primary_key=True),
    sa.Column("task_identity", sa.Text, primary_key=True),
    sa.Column("replicate", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("shards", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("shard", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("study", sa.BigInteger, nullable=False),
    sa.Column("statistics", sa.Text, nullable=False),
    sa.Column("files", sa.Text, nullable=False),
    sa.Column("source", sa.Text, nullable=False),
    sa.Column("duration_s", sa.Double, nullable=False),
    sa.Column("load_s", sa.Double, nullable=False),
    sa.Column("worker", sa.Text, nullable=False),
    sa.Column("created_at", sa.Double, nullable=False),
    _index("eval_results_by_study", "study"),
    _index("eval_results_durations", "task_identity", "created_at", "duration_s"),
)

eval_events = sa.Table(
    "eval_events",
    metadata,
    _key("id"),
    sa.Column("study", sa.ForeignKey("studies.id", name="eval_events_study"), nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("seen", sa.BigInteger),
    sa.Column("suite", sa.Text),
    sa.Column("message", sa.Text, nullable=False),
    sa.Column("data", sa.Text, nullable=False),
    sa.Column("created_at", sa.Double, nullable=False),
    _index("eval_events_by_study", "study", "id"),
)

ONE_STUDY = sa.select(studies).where(studies.c.id == sa.bindparam("study", type_=sa.BigInteger))
