"""Creates and migrates the schema.

Alembic is imported only when there is something to do: opening an up-to-date database costs one query.

Migrations expand first and contract in a later release: a revision may add tables, nullable columns and
indexes, which processes of the release before do not mind; what they still use goes one release later.
"""

from pathlib import Path

import sqlalchemy as sa

from phyla.errors import SchemaMismatch
from phyla.store.sql.backend import Backend

HEAD = "0001"
"""Revision this version of phyla reads and writes."""

MIGRATIONS = Path(__file__).parent / "migrations"
REVISION_TABLE = "phyla_revision"


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
        if found != HEAD:
            _migrate(connection, found, backend.url)
        connection.commit()


def _migrate(connection: sa.Connection, found: str | None, url: str) -> None:
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
