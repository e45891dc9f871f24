"""${message}."""

import sqlalchemy as sa
from alembic import op

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}


def upgrade() -> None:
    """Expand the schema; what the release before still uses stays."""
    ${upgrades if upgrades else "pass"}
