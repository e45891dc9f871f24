"""Early stopping: why a trial was stopped, how often a member was, and where trials are compared."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"

KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Add the columns, and the table of marks."""
    op.add_column("trials", sa.Column("stop_reason", sa.Text()))
    op.add_column("members", sa.Column("stops", sa.Integer()))
    op.add_column("attempts", sa.Column("tally", sa.Text()))
    op.create_table(
        "marks",
        sa.Column("study", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("every", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("step", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("trial", KEY, nullable=False, autoincrement=False),
        sa.Column("average", sa.Double()),
        sa.PrimaryKeyConstraint("study", "every", "step", "trial"),
        sa.ForeignKeyConstraint(["trial"], ["trials.id"], name="marks_trial"),
        sqlite_with_rowid=False,
    )
