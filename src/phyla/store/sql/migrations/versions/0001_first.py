"""The first schema."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Create everything."""
    if op.get_bind().dialect.supports_sequences:
        op.execute(sa.schema.CreateSequence(sa.Sequence("trial_ids", data_type=sa.BigInteger)))
    _studies()
    _members()
    _trials()
    _attempts()
    _checkpoints()
    _reports()


def _where(condition: str) -> dict[str, Any]:
    return {"sqlite_where": sa.text(condition), "postgresql_where": sa.text(condition)}


def _studies() -> None:
    op.create_table(
        "studies",
        sa.Column("id", KEY, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("config", sa.Text(), nullable=False),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("population_size", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("strategy_state", sa.Text()),
        sa.Column("state_version", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("message", sa.Text()),
        sa.CheckConstraint("state IN ('running', 'stopped', 'completed', 'failed')", name="studies_state"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("name", name="studies_name"),
    )


def _members() -> None:
    op.create_table(
        "members",
        sa.Column("study", KEY, nullable=False),
        sa.Column("member", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("spent_steps", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("generation", sa.Integer(), server_default="0", nullable=False),
        sa.Column("decided_steps", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("head", sa.Text()),
        sa.Column("head_order", sa.Double()),
        sa.Column("head_checkpoint", sa.Text()),
        sa.Column("published", sa.Text()),
        sa.Column("published_order", sa.Double()),
        sa.Column("published_checkpoint", sa.Text()),
        sa.Column("recent", sa.Text(), server_default="[]", nullable=False),
        sa.Column("current_trial", sa.BigInteger()),
        sa.Column("broken_trial", sa.BigInteger()),
        sa.Column("replacements", sa.Integer(), server_default="0", nullable=False),
        sa.Column("measures_left", sa.Integer(), server_default="0", nullable=False),
        sa.Column("slot", sa.Text()),
        sa.Column("wait_generation", sa.Integer()),
        sa.Column("wait_until", sa.Double()),
        sa.Column("wait_reason", sa.Text()),
        sa.CheckConstraint("state <> 'running' OR current_trial IS NOT NULL", name="members_running_has_trial"),
        sa.CheckConstraint("state IN ('ready', 'running', 'waiting', 'done')", name="members_state"),
        sa.ForeignKeyConstraint(["study"], ["studies.id"], name="members_study"),
        sa.PrimaryKeyConstraint("study", "member"),
    )
    op.create_index("members_active", "members", ["study", "generation"], **_where("state <> 'done'"))
    op.create_index(
        "members_rank", "members", ["study", "published_order", "member"], **_where("published_order IS NOT NULL")
    )
    op.create_index("members_ready", "members", ["study", "spent_steps", "member"], **_where("state = 'ready'"))
    op.create_index(
        "members_ready_slot",
        "members",
        ["study", "spent_steps", "slot", "member"],
        **_where("state = 'ready'"),
    )
    op.create_index("members_unranked", "members", ["study"], **_where("published_order IS NULL"))
    op.create_index(
        "members_wait_generation",
        "members",
        ["study", "wait_generation", "wait_until"],
        **_where("state = 'waiting'"),
    )
    op.create_index("members_wait_until", "members", ["study", "wait_until"], **_where("state = 'waiting'"))


def _trials() -> None:
    op.create_table(
        "trials",
        sa.Column("id", KEY, autoincrement=False, nullable=False),
        sa.Column("study", KEY, nullable=False),
        sa.Column("member", sa.Integer(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("parent", sa.BigInteger()),
        sa.Column("parent_checkpoint", sa.Text()),
        sa.Column("parent_index", sa.Integer(), nullable=False),
        sa.Column("jump_from", sa.BigInteger()),
        sa.Column("params_from", sa.BigInteger()),
        sa.Column("replaces", sa.BigInteger()),
        sa.Column("params", sa.Text(), nullable=False),
        sa.Column("start_step", sa.BigInteger(), nullable=False),
        sa.Column("end_step", sa.BigInteger(), nullable=False),
        sa.Column("reached_step", sa.BigInteger()),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("token", sa.Integer(), nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("progress", sa.Text()),
        sa.Column("progress_step", sa.BigInteger()),
        sa.Column("exploited", sa.Boolean(), nullable=False),
        sa.Column("fitness", sa.Double()),
        sa.Column("fitness_order", sa.Double()),
        sa.Column("metrics", sa.Text(), nullable=False),
        sa.Column("checkpoint", sa.Text()),
        sa.Column("checkpoint_index", sa.Integer(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("error", sa.Text()),
        sa.Column("worker", sa.Text()),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("started_at", sa.Double()),
        sa.Column("ended_at", sa.Double()),
        sa.CheckConstraint("(ended_at IS NULL) = (state IN ('pending', 'running'))", name="trials_ended"),
        sa.CheckConstraint("kind IN ('train', 'measure')", name="trials_kind"),
        sa.CheckConstraint(
            "state IN ('pending', 'running', 'completed', 'failed', 'cancelled')", name="trials_state"
        ),
        sa.CheckConstraint("fitness IS NULL OR fitness_order IS NOT NULL", name="trials_fitness"),
        sa.ForeignKeyConstraint(["study"], ["studies.id"], name="trials_study"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("trials_by_member", "trials", ["study", "member", "id"])
    op.create_index("trials_by_study", "trials", ["study", "id"])
    op.create_index("trials_ended_at", "trials", ["study", "state", "ended_at"], **_where("ended_at IS NOT NULL"))
    op.create_index(
        "trials_one_unfinished", "trials", ["study", "member"], unique=True, **_where("ended_at IS NULL")
    )
    op.create_index("trials_pending", "trials", ["study", "id"], **_where("state = 'pending'"))
    op.create_index(
        "trials_best",
        "trials",
        ["study", sa.text("fitness_order DESC"), "id"],
        **_where("state = 'completed' AND kind = 'train'"),
    )


def _attempts() -> None:
    op.create_table(
        "attempts",
        sa.Column("trial", KEY, autoincrement=False, nullable=False),
        sa.Column("token", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("study", sa.BigInteger(), nullable=False),
        sa.Column("worker", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("claimed_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.Column("ended_at", sa.Double()),
        sa.Column("outcome", sa.Text()),
        sa.Column("error", sa.Text()),
        sa.CheckConstraint("(ended_at IS NULL) = (state = 'running')", name="attempts_ended"),
        sa.CheckConstraint(
            "state IN ('running', 'completed', 'failed', 'lost', 'released', 'cancelled')", name="attempts_state"
        ),
        sa.ForeignKeyConstraint(["trial"], ["trials.id"], name="attempts_trial"),
        sa.PrimaryKeyConstraint("trial", "token"),
        sqlite_with_rowid=False,
    )
    op.create_index("attempts_expiry", "attempts", ["study", "expires_at", "trial"], **_where("state = 'running'"))
    op.create_index(
        "attempts_one_running", "attempts", ["study", "trial"], unique=True, **_where("state = 'running'")
    )


def _checkpoints() -> None:
    op.create_table(
        "checkpoints",
        sa.Column("study", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("trial", KEY, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("taken", sa.Integer(), nullable=False),
        sa.CheckConstraint("kind IN ('result', 'progress')", name="checkpoints_kind"),
        sa.CheckConstraint("state IN ('live', 'deleting', 'deleted', 'lost')", name="checkpoints_state"),
        sa.ForeignKeyConstraint(["trial"], ["trials.id"], name="checkpoints_trial"),
        sa.PrimaryKeyConstraint("study", "name"),
        sqlite_with_rowid=False,
    )
    op.create_index(
        "checkpoints_live", "checkpoints", ["study", "created_at", "trial", "name"], **_where("state = 'live'")
    )
    op.create_index(
        "checkpoints_deleting",
        "checkpoints",
        ["study", "created_at", "trial", "name"],
        **_where("state = 'deleting'"),
    )


def _reports() -> None:
    op.create_table(
        "reports",
        sa.Column("study", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("trial", KEY, autoincrement=False, nullable=False),
        sa.Column("token", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("seq", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("batch", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["trial"], ["trials.id"], name="reports_trial"),
        sa.PrimaryKeyConstraint("study", "trial", "token", "seq"),
        sqlite_with_rowid=False,
    )
