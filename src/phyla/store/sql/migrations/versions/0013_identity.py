"""Which store this is, so that its checkpoint directories can name their owner."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    """Create the table, empty; its one row is made when it is first asked for."""
    op.create_table(
        "store_identity",
        sa.Column("slot", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("place", sa.Text(), nullable=False),
        sa.Column("copied_from", sa.Text()),
        sa.CheckConstraint("slot = 1", name="store_identity_one"),
    )
