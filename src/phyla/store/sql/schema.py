"""Creates the schema, and rejects a database with another one.

There is one schema until the first release; later versions will migrate older databases.
"""

import functools

import sqlalchemy as sa
from sqlalchemy.schema import CreateIndex, CreateTable

from phyla.errors import SchemaMismatch
from phyla.store.sql.backend import Backend
from phyla.store.sql.tables import job_ids, metadata

HEAD = "development-12"
"""Revision of the schema that this version of phyla reads and writes."""

REVISION_TABLE = "phyla_revision"

_revisions = sa.Table(
    REVISION_TABLE,
    sa.MetaData(),
    sa.Column("version_num", sa.String(32), nullable=False),
    sa.PrimaryKeyConstraint("version_num", name=f"{REVISION_TABLE}_pkc"),
)


def ensure_schema(backend: Backend) -> None:
    """Create the schema in a new database; reject one of another version."""
    with backend.engine.connect() as connection:
        if revision(connection) == HEAD:
            return
        connection.rollback()
        backend.lock_schema(connection)
        current = revision(connection)
        if current is None:
            create(connection)
        elif current != HEAD:
            raise SchemaMismatch(
                f"{backend.url} was made by another version of phyla (schema {current}; this version uses {HEAD}):"
                " open it with that version, or name another database"
            )
        connection.commit()


def revision(connection: sa.Connection) -> str | None:
    """Return the revision of a database's schema, None before the first one; changes nothing."""
    if not sa.inspect(connection).has_table(REVISION_TABLE):
        return None
    current: str | None = connection.scalar(sa.select(_revisions.c.version_num))
    return current


def create(connection: sa.Connection) -> None:
    """Create the schema in a database that has none, inside the transaction that is open."""
    # Existing tables of these names are foreign, which has to be an error.
    job_ids.create(connection, checkfirst=False)
    for statement in _statements(type(connection.dialect)):  # type: ignore[arg-type]  # a class has a hash
        connection.exec_driver_sql(statement)
    connection.execute(_revisions.insert().values(version_num=HEAD))


@functools.cache
def _statements(dialect: type[sa.Dialect]) -> list[str]:
    """Return the statements that create tables and indexes; compiling them takes longer than running them."""
    elements: list[sa.DDLElement] = []
    for table in (*metadata.sorted_tables, _revisions):
        elements.append(CreateTable(table))
        # In one order: of indexes that seem equally good to SQLite, the newest is used.
        for index in sorted(table.indexes, key=lambda index: str(index.name)):
            index.dialect_kwargs[f"{dialect.name}_where"] = index.dialect_kwargs["sqlite_where"]
            elements.append(CreateIndex(index))
    return [str(element.compile(dialect=dialect())) for element in elements]
