"""Evaluation: runs, checkpoints seen, groups, eval tasks, their attempts, the ledger, events."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Create the tables of evaluation."""
    _runs()
    _seen_checkpoints()
    _eval_groups()
    _eval_tasks()
    _eval_attempts()
    _eval_results()
    _eval_events()


def _where(condition: str) -> dict[str, Any]:
    return {"sqlite_where": sa.text(condition), "postgresql_where": sa.text(condition)}


def _runs() -> None:
    op.create_table(
        "runs",
        sa.Column("id", KEY, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("study", KEY),
        sa.Column("location", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("config", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("message", sa.Text()),
        sa.CheckConstraint("(kind = 'study') = (study IS NOT NULL)", name="runs_has_study"),
        sa.CheckConstraint("kind IN ('study', 'directory')", name="runs_kind"),
        sa.CheckConstraint("state IN ('following', 'draining', 'ended')", name="runs_state"),
        sa.ForeignKeyConstraint(["study"], ["studies.id"], name="runs_study"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("name", name="runs_name"),
    )
    op.create_index("runs_by_study", "runs", ["study"])


def _seen_checkpoints() -> None:
    op.create_table(
        "seen_checkpoints",
        sa.Column("id", KEY, nullable=False),
        sa.Column("run", KEY, nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("place", sa.Integer(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("branch", sa.Integer(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("identity", sa.Text(), nullable=False),
        sa.Column("weak", sa.Boolean(), nullable=False),
        sa.Column("fingerprint", sa.Text(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("paths", sa.Text(), nullable=False),
        sa.Column("snapshot", sa.Boolean(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("trial", sa.BigInteger()),
        sa.Column("error", sa.Text()),
        sa.Column("seen_at", sa.Double(), nullable=False),
        sa.Column("written_at", sa.Double(), nullable=False),
        sa.CheckConstraint("state IN ('ready', 'quarantined', 'gone')", name="seen_checkpoints_state"),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name="seen_checkpoints_run"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("seen_checkpoints_by_name", "seen_checkpoints", ["run", "name", "place", "id"])
    op.create_index("seen_checkpoints_by_run", "seen_checkpoints", ["run", "id"])
    op.create_index("seen_checkpoints_number", "seen_checkpoints", ["run", "number"], unique=True)
    op.create_index("seen_checkpoints_ready", "seen_checkpoints", ["run", "number"], **_where("state = 'ready'"))


def _eval_groups() -> None:
    op.create_table(
        "eval_groups",
        sa.Column("id", KEY, nullable=False),
        sa.Column("run", KEY, nullable=False),
        sa.Column("suite", sa.Text(), nullable=False),
        sa.Column("seen", KEY, nullable=False),
        sa.Column("replicate", sa.Integer(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("rank", sa.Double(), nullable=False),
        sa.Column("guaranteed", sa.Text()),
        sa.Column("started", sa.Boolean(), nullable=False),
        sa.Column("best", sa.Boolean(), nullable=False),
        sa.Column("study", sa.BigInteger()),
        sa.Column("trial", sa.BigInteger()),
        sa.Column("member", sa.Integer()),
        sa.Column("why", sa.Text()),
        sa.Column("aggregates", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("not_before", sa.Double(), nullable=False),
        sa.Column("ended_at", sa.Double()),
        sa.CheckConstraint("NOT best OR state = 'complete'", name="eval_groups_best_is_complete"),
        sa.CheckConstraint("(ended_at IS NULL) = (state = 'queued')", name="eval_groups_ended"),
        sa.CheckConstraint(
            "state IN ('queued', 'complete', 'partial', 'skipped', 'gone')", name="eval_groups_state"
        ),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name="eval_groups_run"),
        sa.ForeignKeyConstraint(["seen"], ["seen_checkpoints.id"], name="eval_groups_seen"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index(
        "eval_groups_awaited",
        "eval_groups",
        ["study", "member", "trial", "replicate", "state"],
        **_where("state = 'queued' AND study IS NOT NULL"),
    )
    op.create_index("eval_groups_by_run", "eval_groups", ["run", "id"])
    op.create_index("eval_groups_by_suite", "eval_groups", ["run", "suite", "id"])
    op.create_index(
        "eval_groups_ended_at",
        "eval_groups",
        ["run", "suite", "state", "ended_at"],
        **_where("ended_at IS NOT NULL"),
    )
    op.create_index(
        "eval_groups_fresh",
        "eval_groups",
        ["run", "suite", "id"],
        **_where("state = 'queued' AND priority = 1 AND coalesce(guaranteed, '') <> 'fitness'"),
    )
    op.create_index(
        "eval_groups_guaranteed",
        "eval_groups",
        ["run", "guaranteed", "seen"],
        **_where("state = 'queued' AND guaranteed IS NOT NULL"),
    )
    op.create_index("eval_groups_key", "eval_groups", ["seen", "suite", "replicate"], unique=True)
    op.create_index("eval_groups_one_best", "eval_groups", ["run", "suite"], unique=True, **_where("best"))
    op.create_index("eval_groups_queued", "eval_groups", ["run", "seen", "state"], **_where("state = 'queued'"))
    op.create_index(
        "eval_groups_started", "eval_groups", ["run", "suite", "seen"], **_where("state = 'queued' AND started")
    )
    op.create_index(
        "eval_groups_taken_on", "eval_groups", ["run", "suite", "created_at"], **_where("state <> 'skipped'")
    )


def _eval_tasks() -> None:
    op.create_table(
        "eval_tasks",
        sa.Column("id", KEY, nullable=False),
        sa.Column("run", sa.BigInteger(), nullable=False),
        sa.Column("group_id", KEY, nullable=False),
        sa.Column("seen", sa.BigInteger(), nullable=False),
        sa.Column("task", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("identity", sa.Text(), nullable=False),
        sa.Column("replicate", sa.Integer(), nullable=False),
        sa.Column("shard", sa.Integer(), nullable=False),
        sa.Column("shards", sa.Integer(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("rank", sa.Double(), nullable=False),
        sa.Column("not_before", sa.Double(), nullable=False),
        sa.Column("token", sa.Integer(), nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("max_attempts", sa.Integer(), nullable=False),
        sa.Column("timeout_s", sa.Double()),
        sa.Column("reused", sa.Boolean(), nullable=False),
        sa.Column("worker", sa.Text()),
        sa.Column("error", sa.Text()),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("started_at", sa.Double()),
        sa.Column("ended_at", sa.Double()),
        sa.CheckConstraint("(ended_at IS NULL) = (state IN ('pending', 'running'))", name="eval_tasks_ended"),
        sa.CheckConstraint("kind IN ('evaluate', 'aggregate')", name="eval_tasks_kind"),
        sa.CheckConstraint(
            "state IN ('pending', 'running', 'completed', 'failed', 'cancelled')", name="eval_tasks_state"
        ),
        sa.ForeignKeyConstraint(["group_id"], ["eval_groups.id"], name="eval_tasks_group"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("eval_tasks_by_group", "eval_tasks", ["group_id", "id"])
    op.create_index("eval_tasks_by_run", "eval_tasks", ["run", "id"])
    op.create_index(
        "eval_tasks_held",
        "eval_tasks",
        ["run", "seen", "priority", "rank", "group_id", "id", "not_before"],
        **_where("state = 'pending'"),
    )
    op.create_index(
        "eval_tasks_key",
        "eval_tasks",
        ["group_id", "task", "shard", "identity"],
        unique=True,
        **_where("kind = 'evaluate'"),
    )
    op.create_index("eval_tasks_not_before", "eval_tasks", ["run", "not_before"], **_where("state = 'pending'"))
    op.create_index(
        "eval_tasks_one_aggregation",
        "eval_tasks",
        ["group_id"],
        unique=True,
        **_where("kind = 'aggregate' AND ended_at IS NULL"),
    )
    op.create_index(
        "eval_tasks_pending",
        "eval_tasks",
        ["run", "priority", "rank", "group_id", "id", "not_before"],
        **_where("state = 'pending'"),
    )
    op.create_index("eval_tasks_unfinished", "eval_tasks", ["group_id", "ended_at"], **_where("ended_at IS NULL"))


def _eval_attempts() -> None:
    op.create_table(
        "eval_attempts",
        sa.Column("task", KEY, autoincrement=False, nullable=False),
        sa.Column("token", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("run", sa.BigInteger(), nullable=False),
        sa.Column("worker", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("claimed_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.Column("ended_at", sa.Double()),
        sa.Column("error", sa.Text()),
        sa.CheckConstraint("(ended_at IS NULL) = (state = 'running')", name="eval_attempts_ended"),
        sa.CheckConstraint(
            "state IN ('running', 'completed', 'failed', 'lost', 'released', 'cancelled')",
            name="eval_attempts_state",
        ),
        sa.ForeignKeyConstraint(["task"], ["eval_tasks.id"], name="eval_attempts_task"),
        sa.PrimaryKeyConstraint("task", "token"),
        sqlite_with_rowid=False,
    )
    op.create_index(
        "eval_attempts_by_worker",
        "eval_attempts",
        ["run", "worker", "task", "token"],
        **_where("state = 'running'"),
    )
    op.create_index(
        "eval_attempts_expiry", "eval_attempts", ["run", "expires_at", "task"], **_where("state = 'running'")
    )
    op.create_index(
        "eval_attempts_one_running", "eval_attempts", ["task"], unique=True, **_where("state = 'running'")
    )


def _eval_results() -> None:
    op.create_table(
        "eval_results",
        sa.Column("identity", sa.Text(), nullable=False),
        sa.Column("task_identity", sa.Text(), nullable=False),
        sa.Column("replicate", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("shards", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("shard", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("run", sa.BigInteger(), nullable=False),
        sa.Column("statistics", sa.Text(), nullable=False),
        sa.Column("files", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("duration_s", sa.Double(), nullable=False),
        sa.Column("load_s", sa.Double(), nullable=False),
        sa.Column("worker", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("identity", "task_identity", "replicate", "shards", "shard"),
    )
    op.create_index("eval_results_durations", "eval_results", ["task_identity", "created_at", "duration_s"])


def _eval_events() -> None:
    op.create_table(
        "eval_events",
        sa.Column("id", KEY, nullable=False),
        sa.Column("run", KEY, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("seen", sa.BigInteger()),
        sa.Column("suite", sa.Text()),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("data", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name="eval_events_run"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("eval_events_by_run", "eval_events", ["run", "id"])
