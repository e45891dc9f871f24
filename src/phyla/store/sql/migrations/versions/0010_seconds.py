"""How long members have trained, in seconds."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    """Add the seconds that members spent, now and when they last took over a state."""
    op.add_column("members", sa.Column("spent_s", sa.Double()))
    op.add_column("members", sa.Column("decided_s", sa.Double()))
