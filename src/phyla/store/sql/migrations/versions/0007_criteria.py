"""The metrics that a fitness was made of."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Add the column."""
    op.add_column("trials", sa.Column("criteria", sa.Text))
