"""The schema equals the sum of the migrations, is versioned, and serves every statement by an index."""

import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from phyla.errors import SchemaMismatch, StoreError
from phyla.machine import UpdateMember
from phyla.records import MemberState, Scored
from phyla.store import open_store
from phyla.store.sql import schema
from phyla.store.sql.backend import Backend
from phyla.store.sql.postgres import PostgresBackend
from phyla.store.sql.rows import scored_json
from phyla.store.sql.schema import HEAD, REVISION_TABLE, bring_up_to_date, migrate
from phyla.store.sql.sqlite import SqliteBackend
from phyla.store.sql.tables import metadata
from storing import VirtualClock

MAY_SCAN = {"all_studies", "evaluation.all_runs"}
MAY_SORT = {
    "count_unfinished",
    "checkpoints",
    "claimed_ahead",
    "at_rank_of_ages",
    "evaluation.claimed_ahead",
    "evaluation.running",
    "evaluation.groups_of",
}


def _backend(url: str) -> Backend:
    return SqliteBackend(url, VirtualClock()) if url.startswith("sqlite") else PostgresBackend(url)


def _made(url: str) -> Backend:
    backend = _backend(url)
    bring_up_to_date(backend)
    return backend


def _migrated(url: str) -> Backend:
    backend = _backend(url)
    with backend.engine.connect() as connection:
        backend.lock_schema(connection)
        migrate(connection, None, url)
        connection.commit()
    return backend


def _sqlite_schema(backend: Backend) -> Any:
    with backend.engine.connect() as connection:
        rows = connection.exec_driver_sql("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL").all()
    return {name: _parts(sql.replace('"', "")) for name, sql in rows}


def _parts(sql: str) -> list[str]:
    """Split a definition at the commas between its parts, which have no order that counts.

    What is added to a table later stands on the line of the closing parenthesis.
    """
    parts, depth = [""], 0
    for char in " ".join(sql.split()):
        depth += (char == "(") - (char == ")")
        if char == "," and depth == 1:
            parts.append("")
        else:
            parts[-1] += char
    opening, _, first = parts[0].partition("(")
    closing = parts[-1].rpartition(")") if len(parts) > 1 else ("", "", "")
    inner = [first, *parts[1:-1], closing[0]]
    return [opening.strip(), closing[2].strip(), *sorted(part.strip() for part in inner)]


def _postgres_schema(backend: Backend) -> Any:
    queries = (
        (
            "SELECT table_name, column_name, data_type, is_nullable, column_default "
            "FROM information_schema.columns WHERE table_schema = current_schema()"
        ),
        "SELECT tablename, indexdef, '' FROM pg_indexes WHERE schemaname = current_schema()",
        (
            "SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint "
            "WHERE connamespace = current_schema()::regnamespace"
        ),
        "SELECT sequencename, data_type::text, '' FROM pg_sequences WHERE schemaname = current_schema()",
        (
            "SELECT tgname, pg_get_triggerdef(oid), '' FROM pg_trigger "
            "WHERE tgrelid = 'trials'::regclass AND NOT tgisinternal"
        ),
        "SELECT proname, prosrc, '' FROM pg_proc WHERE pronamespace = current_schema()::regnamespace",
    )
    with backend.engine.connect() as connection:
        schema = connection.exec_driver_sql("SELECT current_schema()").scalar_one()
        found = [tuple(row) for query in queries for row in connection.exec_driver_sql(query)]
    return sorted(str(row).replace(f"{schema}.", "") for row in found)


@pytest.fixture
def sqlite_urls(tmp_path: Path) -> tuple[str, str]:
    return f"sqlite:///{tmp_path}/migrated.db", f"sqlite:///{tmp_path}/made.db"


def test_migrations_make_the_schema_on_sqlite(sqlite_urls: tuple[str, str]) -> None:
    migrated = _migrated(sqlite_urls[0])
    made = _made(sqlite_urls[1])
    assert _sqlite_schema(migrated) == _sqlite_schema(made)
    assert _differences(migrated) == []
    assert _revision(migrated) == _revision(made) == HEAD


def test_migrations_make_the_schema_on_postgres(make_postgres_url: Callable[[], str]) -> None:
    migrated = _migrated(make_postgres_url())
    made = _made(make_postgres_url())
    assert _postgres_schema(migrated) == _postgres_schema(made)
    assert _differences(migrated) == []
    assert _revision(migrated) == _revision(made) == HEAD
    for backend in (migrated, made):
        backend.engine.dispose()


def _revision(backend: Backend) -> str | None:
    with backend.engine.connect() as connection:
        return backend.revision(connection)


def _differences(backend: Backend) -> list[Any]:
    with backend.engine.connect() as connection, warnings.catch_warnings():
        # Alembic does not see DESC in an index; the comparison of the texts has seen it.
        warnings.filterwarnings("ignore", message=".*expression-based index.*")
        options = {"version_table": REVISION_TABLE, "compare_type": True, "compare_server_default": True}
        found = compare_metadata(MigrationContext.configure(connection, opts=options), metadata)
    return [entry for entry in found if "trials_best" not in str(entry)]


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, sqlite_urls: tuple[str, str]) -> str:
    return sqlite_urls[0] if request.param == "sqlite" else str(request.getfixturevalue("postgres_url"))


def test_a_database_of_a_newer_version_is_refused(url: str) -> None:
    backend = _made(url)
    with backend.engine.begin() as connection:
        connection.exec_driver_sql(f"UPDATE {REVISION_TABLE} SET version_num = '9999'")
    with pytest.raises(SchemaMismatch, match=rf"revision 9999.*up to {HEAD}.*pip install --upgrade phyla"):
        open_store(url)
    with backend.engine.connect() as connection:
        assert backend.revision(connection) == "9999"
    backend.engine.dispose()


def test_several_processes_may_create_it_at_once(url: str) -> None:
    code = "import sys; from phyla.store import open_store; open_store(sys.argv[1]).create_study('s', {}, 1, 3)"
    running = [subprocess.Popen([sys.executable, "-c", code, url]) for _ in range(3)]
    assert [process.wait(60) for process in running] == [0, 0, 0]
    store = open_store(url)
    assert [study.name for study in store.studies()] == ["s"]
    store.close()


def test_a_database_of_an_older_version_is_migrated(
    sqlite_urls: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = _made(sqlite_urls[0])
    with backend.engine.begin() as connection:
        connection.exec_driver_sql(f"UPDATE {REVISION_TABLE} SET version_num = 'older'")
    asked: list[str | None] = []
    monkeypatch.setattr(schema, "migrate", lambda connection, found, url: asked.append(found))
    bring_up_to_date(backend)
    assert asked == ["older"]
    backend.engine.dispose()


def test_what_was_published_before_ages_were_kept_gets_its_age(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(schema, "HEAD", "0008")
        backend = _migrated(url)
    published = [scored_json(scored(member, step)) for member, step in enumerate((30, 30, 7))]
    with backend.engine.begin() as connection:
        connection.execute(
            sa.text(
                "INSERT INTO studies (id, name, state, config, seed, population_size, created_at) "
                "VALUES (1, 's', 'running', '{}', 0, 4, 0)"
            )
        )
        for member, text in enumerate([*published, None]):
            connection.execute(
                sa.text(
                    "INSERT INTO members (study, member, state, published, published_order) "
                    "VALUES (1, :member, 'ready', :published, :order)"
                ),
                {"member": member, "published": text, "order": None if text is None else 0.5},
            )
    backend.engine.dispose()
    store = open_store(url)
    with store.reader(1) as reader:
        assert [reader.next_age(after) for after in (-1, 7, 30)] == [7, 30, None]
        assert [reader.at_rank_among((30, 30), rank) for rank in (0, 1)] == [(0.5, 1), (0.5, 0)]
    store.close()


def scored(member: int, step: int) -> Scored:
    return Scored(
        trial=1, member=member, checkpoint="1.1", index=0, step=step, params={"step": 5}, fitness=0.5, order=0.5
    )


def test_tables_of_somebody_else_are_left_alone(sqlite_urls: tuple[str, str]) -> None:
    backend = _backend(sqlite_urls[0])
    with backend.engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE trials (theirs)")
    with pytest.raises(StoreError, match="table trials already exists"):
        open_store(sqlite_urls[0])
    assert list(_sqlite_schema(backend)) == ["trials"]
    backend.engine.dispose()


def test_opening_a_database_imports_no_heavy_module(url: str) -> None:
    code = (
        "import sys; from phyla.store import open_store; assert 'sqlalchemy' not in sys.modules; "
        "open_store(sys.argv[1]).find_study('s'); "
        "assert not {'alembic', 'scipy', 'mako', 'sqlalchemy.orm'} & set(sys.modules)"
    )
    for _ in ("new", "existing"):
        subprocess.run([sys.executable, "-c", code, url], check=True, timeout=60)


def test_a_member_has_one_unfinished_trial(url: str) -> None:
    store = open_store(url)
    store.create_study("s", {}, 1, 1)
    insert = (
        "INSERT INTO trials (id, study, member, generation, kind, state, parent_index, params, start_step, "
        "end_step, seed, token, failures, exploited, metrics, checkpoint_index, reason, created_at) VALUES "
        "(:id, 1, 0, 0, 'train', :state, 0, '{}', 0, 1, 0, 1, 0, false, '{}', 0, '{}', 0)"
    )
    backend = _made(url)
    with backend.engine.begin() as connection:
        connection.execute(sa.text(insert), {"id": 1, "state": "pending"})
    with pytest.raises(sa.exc.IntegrityError), backend.engine.begin() as connection:
        connection.execute(sa.text(insert), {"id": 2, "state": "running"})
    backend.engine.dispose()
    store.close()


def test_an_invariant_that_is_violated_is_explained(url: str) -> None:
    store = open_store(url)
    store.create_study("s", {}, 1, 1)

    def violate() -> None:
        with store.transaction(1, exclusive=True) as tx:
            tx.apply([UpdateMember(replace(tx.locked_member(0), state=MemberState.RUNNING))])

    with pytest.raises(StoreError, match="members_running_has_trial"):
        violate()
    store.close()


def test_no_statement_scans_a_table(sqlite_urls: tuple[str, str]) -> None:
    backend = _made(sqlite_urls[0])
    evaluation = vars(backend.statements.evaluation).items()
    statements = {
        **{name: value for name, value in vars(backend.statements).items() if isinstance(value, str)},
        **{f"evaluation.{name}": value for name, value in evaluation if isinstance(value, str)},
        "update_group": backend.statements.evaluation.update_group(("state", "values")),
        "update_task": backend.statements.evaluation.update_task(("state", "token")),
        "update_member": backend.statements.update_member(("state", "head")),
        "update_trial": backend.statements.update_trial(("state", "order")),
    }
    scanning, sorting = set(), set()
    with backend.engine.connect() as connection:
        for name, statement in statements.items():
            if "clock" in name:
                continue
            nothing = dict.fromkeys(re.findall(r":(\w+)", statement))
            for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", nothing):
                if "SCAN" in row[3] and row[3] != "SCAN CONSTANT ROW":
                    scanning.add(name)
                if "TEMP B-TREE" in row[3]:
                    sorting.add(name)
    backend.engine.dispose()
    assert scanning == MAY_SCAN
    assert sorting == MAY_SORT
