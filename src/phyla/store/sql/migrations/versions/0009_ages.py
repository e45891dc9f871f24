"""The age of what each member published, for ranks at equal progress."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"

RANKED = sa.text("published_order IS NOT NULL")


def upgrade() -> None:
    """Add the column, fill it from what was published, and create the index."""
    op.add_column("members", sa.Column("published_step", sa.BigInteger()))
    if op.get_bind().dialect.name == "sqlite":
        step = "json_extract(published, '$.step')"
    else:
        step = "CAST(CAST(published AS json) ->> 'step' AS bigint)"
    op.execute(sa.text(f"UPDATE members SET published_step = {step} WHERE published IS NOT NULL"))
    op.create_index(
        "members_age",
        "members",
        ["study", "published_step", "published_order", "member"],
        sqlite_where=RANKED,
        postgresql_where=RANKED,
    )
