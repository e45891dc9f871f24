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
    EvalTaskKind,
    GroupState,
    MemberState,
    RunKind,
    RunState,
    SeenState,
    StudyState,
    TrialKind,
    TrialState,
)

metadata = sa.MetaData()

READY = sa.text("state = 'ready'")
RUNNING = sa.text("state = 'running'")
PENDING = sa.text("state = 'pending'")
LIVE = sa.text("state = 'live'")
DELETING = sa.text("state = 'deleting'")
DAMAGED = sa.text("state = 'damaged'")
UNFINISHED = sa.text("ended_at IS NULL")
ENDED = sa.text("ended_at IS NOT NULL")
RESULT = sa.text("state = 'completed' AND kind = 'train'")
SCORED = sa.text("state = 'completed' AND kind = 'train' AND fitness_order IS NOT NULL")
QUEUED = sa.text("state = 'queued'")
FRESH = sa.text("state = 'queued' AND priority = 1 AND coalesce(guaranteed, '') <> 'fitness'")
STARTED = sa.text("state = 'queued' AND started")
GUARANTEED = sa.text("state = 'queued' AND guaranteed IS NOT NULL")
AWAITED = sa.text("state = 'queued' AND study IS NOT NULL")
TAKEN_ON = sa.text("state <> 'skipped'")
BEST = sa.text("best")
EVALUATION = sa.text("kind = 'evaluate'")
AGGREGATION = sa.text("kind = 'aggregate' AND ended_at IS NULL")


def _one_of(column: str, values: Iterable[StrEnum]) -> str:
    return f"{column} IN ({', '.join(repr(value.value) for value in values)})"


def _index(
    name: str, *columns: "str | sa.TextClause", where: sa.TextClause | None = None, unique: bool = False
) -> sa.Index:
    return sa.Index(name, *columns, unique=unique, sqlite_where=where, postgresql_where=where)


def _key(name: str) -> "sa.Column[int]":
    # Only this type makes SQLite use its row id as the key.
    return sa.Column(name, sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True)


trial_ids = sa.Sequence("trial_ids", metadata=metadata, data_type=sa.BigInteger)

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
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("config", sa.Text, nullable=False),
    sa.Column("seed", sa.BigInteger, nullable=False),
    sa.Column("population_size", sa.Integer, nullable=False),
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Column("strategy_state", sa.Text),
    sa.Column("state_version", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("message", sa.Text),
    sa.Column("resumed_at", sa.Double),
    sa.UniqueConstraint("name", name="studies_name"),
    sa.CheckConstraint(_one_of("state", StudyState), name="studies_state"),
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

trials = sa.Table(
    "trials",
    metadata,
    sa.Column(
        "id",
        sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
        primary_key=True,
        autoincrement=False,
    ),
    sa.Column("study", sa.ForeignKey("studies.id", name="trials_study"), nullable=False),
    sa.Column("member", sa.Integer, nullable=False),
    sa.Column("generation", sa.Integer, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("parent", sa.BigInteger),
    sa.Column("parent_checkpoint", sa.Text),
    sa.Column("parent_index", sa.Integer, nullable=False),
    sa.Column("jump_from", sa.BigInteger),
    sa.Column("params_from", sa.BigInteger),
    sa.Column("replaces", sa.BigInteger),
    sa.Column("params", sa.Text, nullable=False),
    sa.Column("start_step", sa.BigInteger, nullable=False),
    sa.Column("end_step", sa.BigInteger, nullable=False),
    sa.Column("reached_step", sa.BigInteger),
    sa.Column("seed", sa.BigInteger, nullable=False),
    sa.Column("token", sa.Integer, nullable=False),
    sa.Column("failures", sa.Integer, nullable=False),
    sa.Column("progress", sa.Text),
    sa.Column("progress_step", sa.BigInteger),
    sa.Column("exploited", sa.Boolean(create_constraint=False), nullable=False),
    # NULL beside a fitness_order stands for nan, which SQLite cannot store.
    sa.Column("fitness", sa.Double),
    sa.Column("fitness_order", sa.Double, key="order"),
    sa.Column("metrics", sa.Text, nullable=False),
    sa.Column("checkpoint", sa.Text),
    sa.Column("checkpoint_index", sa.Integer, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("error", sa.Text),
    sa.Column("worker", sa.Text),
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Column("started_at", sa.Double),
    sa.Column("ended_at", sa.Double),
    sa.Column("stop_reason", sa.Text),
    sa.Column("origin", sa.Text),
    sa.Column("criteria", sa.Text),
    sa.Column("age", sa.BigInteger, nullable=False, server_default="0"),
    sa.CheckConstraint(_one_of("kind", TrialKind), name="trials_kind"),
    sa.CheckConstraint(_one_of("state", TrialState), name="trials_state"),
    sa.CheckConstraint(
        "(ended_at IS NULL) = (" + _one_of("state", (TrialState.PENDING, TrialState.RUNNING)) + ")",
        name="trials_ended",
    ),
    sa.CheckConstraint("fitness IS NULL OR fitness_order IS NOT NULL", name="trials_fitness"),
    _index("trials_by_study", "study", "id"),
    _index("trials_by_member", "study", "member", "id"),
    _index("trials_one_unfinished", "study", "member", where=UNFINISHED, unique=True),
    _index("trials_pending", "study", "id", where=PENDING),
    _index("trials_ended_at", "study", "state", "ended_at", where=ENDED),
    _index("trials_generation", "study", "generation", "order", "state", "kind", where=SCORED),
    _index("trials_best", "study", sa.text("fitness_order DESC"), "id", where=RESULT),
)

attempts = sa.Table(
    "attempts",
    metadata,
    sa.Column("trial", sa.ForeignKey("trials.id", name="attempts_trial"), primary_key=True, autoincrement=False),
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
    _index("attempts_one_running", "study", "trial", where=RUNNING, unique=True),
    _index("attempts_expiry", "study", "expires_at", "trial", where=RUNNING),
    sqlite_with_rowid=False,
)

checkpoints = sa.Table(
    "checkpoints",
    metadata,
    sa.Column("study", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("trial", sa.ForeignKey("trials.id", name="checkpoints_trial"), nullable=False),
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
    sa.Column("trial", sa.ForeignKey("trials.id", name="reports_trial"), primary_key=True, autoincrement=False),
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
    sa.Column("trial", sa.ForeignKey("trials.id", name="marks_trial"), primary_key=True, autoincrement=False),
    # NULL stands for nan, which SQLite cannot store.
    sa.Column("average", sa.Double),
    _index("marks_by_trial", "trial"),
    sqlite_with_rowid=False,
)

runs = sa.Table(
    "runs",
    metadata,
    _key("id"),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("study", sa.ForeignKey("studies.id", name="runs_study")),
    sa.Column("location", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("config", sa.Text, nullable=False),
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Column("message", sa.Text),
    sa.UniqueConstraint("name", name="runs_name"),
    sa.CheckConstraint(_one_of("kind", RunKind), name="runs_kind"),
    sa.CheckConstraint(_one_of("state", RunState), name="runs_state"),
    sa.CheckConstraint("(kind = 'study') = (study IS NOT NULL)", name="runs_has_study"),
    _index("runs_by_study", "study"),
)

seen_checkpoints = sa.Table(
    "seen_checkpoints",
    metadata,
    _key("id"),
    sa.Column("run", sa.ForeignKey("runs.id", name="seen_checkpoints_run"), nullable=False),
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
    _index("seen_checkpoints_by_run", "run", "id"),
    _index("seen_checkpoints_by_name", "run", "name", "index", "id"),
    _index("seen_checkpoints_number", "run", "number", unique=True),
    _index("seen_checkpoints_by_identity", "identity", "run"),
    _index("seen_checkpoints_ready", "run", "number", where=READY),
)

eval_groups = sa.Table(
    "eval_groups",
    metadata,
    _key("id"),
    sa.Column("run", sa.ForeignKey("runs.id", name="eval_groups_run"), nullable=False),
    sa.Column("suite", sa.Text, nullable=False),
    sa.Column("seen", sa.ForeignKey("seen_checkpoints.id", name="eval_groups_seen"), nullable=False),
    sa.Column("replicate", sa.Integer, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("priority", sa.Integer, nullable=False),
    sa.Column("rank", sa.Double, nullable=False),
    sa.Column("guaranteed", sa.Text),
    sa.Column("started", sa.Boolean(create_constraint=False), nullable=False),
    sa.Column("best", sa.Boolean(create_constraint=False), nullable=False),
    sa.Column("study", sa.BigInteger),
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
    _index("eval_groups_by_run", "run", "id"),
    _index("eval_groups_by_suite", "run", "suite", "id"),
    _index("eval_groups_queued", "run", "seen", "state", where=QUEUED),
    _index("eval_groups_fresh", "run", "suite", "id", where=FRESH),
    _index("eval_groups_started", "run", "suite", "seen", where=STARTED),
    _index("eval_groups_guaranteed", "run", "guaranteed", "seen", where=GUARANTEED),
    _index("eval_groups_awaited", "study", "member", "trial", "replicate", "state", where=AWAITED),
    _index("eval_groups_taken_on", "run", "suite", "created_at", where=TAKEN_ON),
    _index("eval_groups_ended_at", "run", "suite", "state", "ended_at", where=ENDED),
    _index("eval_groups_one_best", "run", "suite", where=BEST, unique=True),
)

eval_tasks = sa.Table(
    "eval_tasks",
    metadata,
    _key("id"),
    sa.Column("run", sa.BigInteger, nullable=False),
    sa.Column("group_id", sa.ForeignKey("eval_groups.id", name="eval_tasks_group"), nullable=False, key="group"),
    sa.Column("seen", sa.BigInteger, nullable=False),
    sa.Column("task", sa.Text, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("identity", sa.Text, nullable=False),
    sa.Column("replicate", sa.Integer, nullable=False),
    sa.Column("shard", sa.Integer, nullable=False),
    sa.Column("shards", sa.Integer, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("priority", sa.Integer, nullable=False),
    sa.Column("rank", sa.Double, nullable=False),
    sa.Column("not_before", sa.Double, nullable=False),
    sa.Column("token", sa.Integer, nullable=False),
    sa.Column("failures", sa.Integer, nullable=False),
    sa.Column("max_attempts", sa.Integer, nullable=False),
    sa.Column("timeout_s", sa.Double),
    sa.Column("reused", sa.Boolean(create_constraint=False), nullable=False),
    sa.Column("worker", sa.Text),
    sa.Column("error", sa.Text),
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Column("started_at", sa.Double),
    sa.Column("ended_at", sa.Double),
    sa.CheckConstraint(_one_of("kind", EvalTaskKind), name="eval_tasks_kind"),
    sa.CheckConstraint(_one_of("state", TrialState), name="eval_tasks_state"),
    sa.CheckConstraint(
        "(ended_at IS NULL) = (" + _one_of("state", (TrialState.PENDING, TrialState.RUNNING)) + ")",
        name="eval_tasks_ended",
    ),
    _index("eval_tasks_by_run", "run", "id"),
    _index("eval_tasks_by_group", "group", "id"),
    _index("eval_tasks_key", "group", "task", "shard", "identity", where=EVALUATION, unique=True),
    _index("eval_tasks_one_aggregation", "group", where=AGGREGATION, unique=True),
    _index("eval_tasks_unfinished", "group", "ended_at", where=UNFINISHED),
    _index("eval_tasks_pending", "run", "priority", "rank", "group", "id", "not_before", where=PENDING),
    _index("eval_tasks_held", "run", "seen", "priority", "rank", "group", "id", "not_before", where=PENDING),
    _index("eval_tasks_not_before", "run", "not_before", where=PENDING),
)

eval_attempts = sa.Table(
    "eval_attempts",
    metadata,
    sa.Column(
        "task", sa.ForeignKey("eval_tasks.id", name="eval_attempts_task"), primary_key=True, autoincrement=False
    ),
    sa.Column("token", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("run", sa.BigInteger, nullable=False),
    sa.Column("worker", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("claimed_at", sa.Double, nullable=False),
    sa.Column("expires_at", sa.Double, nullable=False),
    sa.Column("ended_at", sa.Double),
    sa.Column("error", sa.Text),
    sa.CheckConstraint(_one_of("state", AttemptState), name="eval_attempts_state"),
    sa.CheckConstraint("(ended_at IS NULL) = (state = 'running')", name="eval_attempts_ended"),
    _index("eval_attempts_one_running", "task", where=RUNNING, unique=True),
    _index("eval_attempts_by_worker", "run", "worker", "task", "token", where=RUNNING),
    _index("eval_attempts_expiry", "run", "expires_at", "task", where=RUNNING),
    sqlite_with_rowid=False,
)

# Its key has no run: what was found on a checkpoint is known to every run that meets the same one.
eval_results = sa.Table(
    "eval_results",
    metadata,
    sa.Column("identity", sa.Text, primary_key=True),
    sa.Column("task_identity", sa.Text, primary_key=True),
    sa.Column("replicate", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("shards", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("shard", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("run", sa.BigInteger, nullable=False),
    sa.Column("statistics", sa.Text, nullable=False),
    sa.Column("files", sa.Text, nullable=False),
    sa.Column("source", sa.Text, nullable=False),
    sa.Column("duration_s", sa.Double, nullable=False),
    sa.Column("load_s", sa.Double, nullable=False),
    sa.Column("worker", sa.Text, nullable=False),
    sa.Column("created_at", sa.Double, nullable=False),
    _index("eval_results_by_run", "run"),
    _index("eval_results_durations", "task_identity", "created_at", "duration_s"),
)

eval_events = sa.Table(
    "eval_events",
    metadata,
    _key("id"),
    sa.Column("run", sa.ForeignKey("runs.id", name="eval_events_run"), nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("seen", sa.BigInteger),
    sa.Column("suite", sa.Text),
    sa.Column("message", sa.Text, nullable=False),
    sa.Column("data", sa.Text, nullable=False),
    sa.Column("created_at", sa.Double, nullable=False),
    _index("eval_events_by_run", "run", "id"),
)

ONE_STUDY = sa.select(studies).where(studies.c.id == sa.bindparam("study", type_=sa.BigInteger))
ONE_RUN = sa.select(runs).where(runs.c.id == sa.bindparam("run", type_=sa.BigInteger))
