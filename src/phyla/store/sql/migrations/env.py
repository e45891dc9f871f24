"""Runs migrations on the connection that `phyla.store.sql.schema` hands over."""

from alembic import context

from phyla.store.sql.schema import REVISION_TABLE

context.configure(
    connection=context.config.attributes["connection"],
    version_table=REVISION_TABLE,
    # The connection is inside a transaction already, and all of it shall be one.
    transactional_ddl=True,
)
context.run_migrations()
