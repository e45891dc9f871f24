"""Where imported checkpoints come from."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0003"


def upgrade() -> None:
    """Add the column."""
    op.add_column("trials", sa.Column("origin", sa.Text()))
