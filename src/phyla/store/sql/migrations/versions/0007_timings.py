"""Where the time of an attempt went."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0004"


def upgrade() -> None:
    """Add the seconds by phase to attempts."""
    op.add_column("attempts", sa.Column("timings", sa.Text()))
