"""Where imported checkpoints come from; members that were retired, and those that joined later."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Add the columns."""
    op.add_column("trials", sa.Column("origin", sa.Text()))
    op.add_column("members", sa.Column("retired", sa.Boolean(create_constraint=False)))
    op.add_column("members", sa.Column("joined_steps", sa.BigInteger()))
    op.add_column("members", sa.Column("joined_generation", sa.Integer()))
