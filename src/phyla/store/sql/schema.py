"""Creates and migrates the schema.

A new database gets the tables as `phyla.store.sql.tables` declares them, an older one the migrations it lacks;
that both end with the same schema is tested. Alembic is imported for migrations only, for it is slow to start.

Migrations expand first and contract in a later release: a revision may add tables, nullable columns,
indexes and triggers, which processes of the release before do not mind; what they still use goes one release
later.
"""

from pathlib import Path

import sqlalchemy as sa

from phyla.errors import SchemaMismatch
from phyla.store.sql.backend import Backend
from phyla.store.sql.tables import TRIGGERS, metadata

HEAD = "0014"
"""Revision this version of phyla reads and writes."""

MIGRATIONS = Path(__file__).parent / "migrations"
REVISION_TABLE = "phyla_revision"

_revisions = sa.Table(
    REVISION_TABLE,
    sa.MetaData(),
    sa.Column("version_num", sa.String(32), nullable=False),
    sa.PrimaryKeyConstraint("version_num", name=f"{REVISION_TABLE}_pkc"),
)
"""As Alembic makes it."""


def bring_up_to_date(backend: Backend) -> None:
    """Create or migrate the schema if it is not the one this version uses.

    Raises:
        SchemaMismatch: the database was made by a newer version.
    """
    with backend.engine.connect() as connection:
        if backend.revision(connection) == HEAD:
            return
        connection.rollback()
        backend.lock_schema(connection)
        found = backend.revision(connection)
        if found is None:
            create(connection)
        elif found != HEAD:
            migrate(connection, found, backend.url)
        connection.commit()


def create(connection: sa.Connection) -> None:
    """Create the schema in a database that has none, inside the transaction that is open."""
    # What is in the way is not phyla's own: it shall be an error.
    metadata.create_all(connection, checkfirst=False)
    for statement in TRIGGERS[connection.dialect.name]:
        connection.exec_driver_sql(statement)
    _revisions.create(connection, checkfirst=False)
    connection.execute(_revisions.insert().values(version_num=HEAD))


def migrate(connection: sa.Connection, found: str | None, url: str) -> None:
    """Run the migrations that come after a revision, all of them after None, inside the open transaction.

    Raises:
        SchemaMismatch: the revision is unknown.
    """
    from alembic import command
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    if found is not None and found not in known:
        raise SchemaMismatch(
            f"{url} has schema revision {found}, this version of phyla knows revisions up to {HEAD}; it was made "
            "by a newer one: pip install --upgrade phyla, or name another database"
        )
    command.upgrade(config, HEAD)
