"""How many trials of a generation have a fitness, kept by triggers for ranks at equal progress."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"

SCORED = "{0}.state = 'completed' AND {0}.kind = 'train' AND {0}.fitness_order IS NOT NULL"
GETS_SCORE = (
    "AFTER UPDATE OF state, fitness_order ON trials FOR EACH ROW "
    f"WHEN ({SCORED.format('new')} AND NOT ({SCORED.format('old')}))"
)
COUNT = "UPDATE generations SET scored = scored + 1 WHERE study = new.study AND generation = new.generation;"


def upgrade() -> None:
    """Create the table, empty, and the trigger."""
    op.create_table(
        "generations",
        sa.Column("study", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("generation", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("scored", sa.Integer(), nullable=False),
        sqlite_with_rowid=False,
    )
    if op.get_bind().dialect.name == "sqlite":
        op.execute(f"CREATE TRIGGER trials_scored {GETS_SCORE} BEGIN {COUNT} END")
    else:
        body = f"$$ BEGIN {COUNT} RETURN NULL; END $$"
        op.execute(f"CREATE FUNCTION phyla_count_scored() RETURNS trigger AS {body} LANGUAGE plpgsql")
        op.execute(f"CREATE TRIGGER trials_scored {GETS_SCORE} EXECUTE FUNCTION phyla_count_scored()")
