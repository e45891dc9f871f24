"""The best that each member published, for strategies that return to older checkpoints."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Create the table of elites."""
    op.create_table(
        "elites",
        sa.Column("study", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("member", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("scored", sa.Text(), nullable=False),
        sa.Column("scored_order", sa.Double(), nullable=False),
        sa.Column("checkpoint", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("study", "member"),
        sqlite_with_rowid=False,
    )
    op.create_index("elites_rank", "elites", ["study", "scored_order", "member"])
