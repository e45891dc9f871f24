"""What is wrong with the files of damaged checkpoints."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"

DAMAGED = sa.text("damage IS NOT NULL")


def upgrade() -> None:
    """Add the column and the index."""
    op.add_column("checkpoints", sa.Column("damage", sa.Text()))
    op.create_index(
        "checkpoints_damaged",
        "checkpoints",
        ["study", "created_at", "trial", "name"],
        sqlite_where=DAMAGED,
        postgresql_where=DAMAGED,
    )
