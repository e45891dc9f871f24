"""What a role needs on PostgreSQL, and what it is told without."""

from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from facts import raises
from phyla.controller import Controller
from phyla.errors import StoreError
from phyla.store import open_store
from phyla.store.sql.postgres import PostgresBackend
from phyla.store.sql.store import SqlStore
from storing import completion, pbt, rules

GRANTS = "GRANT the role SELECT, INSERT, UPDATE and DELETE on all tables"
Granted = Callable[..., str]


@pytest.fixture
def granted(postgres_url: str) -> Iterator[Granted]:
    """Gives a new role some rights, and returns the URL with which it opens the schema."""
    backend = PostgresBackend(postgres_url)

    def grant(*rights: str) -> str:
        with backend.engine.begin() as connection:
            schema = connection.exec_driver_sql("SELECT current_schema()").scalar_one()
            role = f"role_{schema}_{len(rights)}"
            connection.exec_driver_sql(f"CREATE ROLE {role} LOGIN")
            for right in ("USAGE ON SCHEMA", *rights):
                connection.exec_driver_sql(f"GRANT {right} {schema} TO {role}")
        return backend.engine.url.set(username=role, drivername="postgresql").render_as_string(False)

    yield grant
    backend.close()


def test_a_role_without_rights_is_told_what_to_grant(granted: Granted, postgres_url: str) -> None:
    with raises(StoreError, GRANTS, "CREATE"):
        open_store(granted())
    with closing(SqlStore(PostgresBackend(postgres_url))) as owned:
        owned.create_study("s", {}, 1, 1)
    with closing(open_store(granted("SELECT ON ALL TABLES IN SCHEMA"))) as store:
        assert [study.name for study in store.studies()] == ["s"]
        with raises(StoreError, GRANTS):
            store.create_study("t", {}, 1, 1)


def test_what_it_is_told_is_enough(granted: Granted, postgres_url: str) -> None:
    open_store(postgres_url).close()
    tables = "SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA"
    with closing(open_store(granted(tables, "USAGE ON ALL SEQUENCES IN SCHEMA"))) as store:
        study = store.create_study("s", {}, 1, 1)
        controller = Controller(store, study.id, rules(pbt(1)))
        (claimed,), _ = controller.claim("a")
        controller.complete([completion(claimed)])
        store.delete_study(study.id)
        assert store.studies() == []
