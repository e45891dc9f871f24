"""When studies were resumed, so that broken trials are counted afresh."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    """Add the time of the last resume."""
    op.add_column("studies", sa.Column("resumed_at", sa.Double()))
