"""Scores by generation, for rules that compare at equal progress."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

SCORED = sa.text("state = 'completed' AND kind = 'train' AND fitness_order IS NOT NULL")


def upgrade() -> None:
    """Create the index."""
    op.create_index(
        "trials_generation",
        "trials",
        ["study", "generation", "fitness_order", "state", "kind"],
        sqlite_where=SCORED,
        postgresql_where=SCORED,
    )
