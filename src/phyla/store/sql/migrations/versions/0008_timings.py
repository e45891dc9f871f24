"""Where the time of an attempt went."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """Add the seconds by phase to attempts."""
    op.add_column("attempts", sa.Column("timings", sa.Text()))
