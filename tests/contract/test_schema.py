"""The schema is versioned, keeps invariants, and serves every statement by an index."""

import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa

from evaluating import found, suites
from facts import raises
from forked import Forked
from phyla.errors import SchemaMismatch, StoreError
from phyla.machine import InsertJobs, Update, observe
from phyla.records import JobState, MemberState, StudyKind
from phyla.store import open_store
from phyla.store.sql import read_evaluation, read_jobs, read_population, sqlite, store, tables, transaction
from phyla.store.sql.backend import Backend
from phyla.store.sql.postgres import PostgresBackend
from phyla.store.sql.schema import HEAD, REVISION_TABLE, ensure_schema, revision
from phyla.store.sql.sqlite import SqliteBackend
from storing import VirtualClock

MAY_SCAN = {"store.ALL_STUDIES", "store.ALL_TOKENS"}
MAY_SORT = {
    "read_population.COUNT_UNFINISHED",
    "read_population.CHECKPOINTS",
    "read_population.COHORTS",
    "read_population.RESULTS",
    "read_evaluation.GROUPS_OF",
    "read_jobs.WAITING",
}


def _backend(url: str) -> Backend:
    return SqliteBackend(url, VirtualClock()) if url.startswith("sqlite") else PostgresBackend(url)


def _made(url: str) -> Backend:
    backend = _backend(url)
    ensure_schema(backend)
    return backend


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return (
        f"sqlite:///{tmp_path}/store.db"
        if request.param == "sqlite"
        else str(request.getfixturevalue("postgres_url"))
    )


def test_a_database_of_another_version_is_refused_and_left_alone(url: str) -> None:
    backend = _made(url)
    with backend.engine.begin() as connection:
        connection.exec_driver_sql(f"UPDATE {REVISION_TABLE} SET version_num = 'another'")
    message = f"was made by another version of phyla (schema another; this version uses {HEAD}): open it with"
    with pytest.raises(SchemaMismatch, match=re.escape(message)):
        open_store(url)
    with backend.engine.connect() as connection:
        assert revision(connection) == "another"
    backend.engine.dispose()


def test_several_processes_may_create_it_at_once(url: str) -> None:
    code = "import sys; from phyla.store import open_store; open_store(sys.argv[1]).create_study('s', {}, 1, 3)"
    running = [Forked(["-c", code, url], merged=True) for _ in range(2)]
    assert [process.wait(180) for process in running] == [0, 0], [process.printed() for process in running]
    store = open_store(url)
    assert [study.name for study in store.studies()] == ["s"]
    store.close()


def test_tables_of_somebody_else_are_left_alone(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/theirs.db"
    backend = _backend(url)
    with backend.engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE jobs (theirs)")
    with raises(StoreError, "jobs"):
        open_store(url)
    with backend.engine.connect() as connection:
        assert sa.inspect(connection).get_table_names() == ["jobs"]
    backend.engine.dispose()


def test_opening_a_database_imports_no_heavy_module(tmp_path: Path, postgres_url: str) -> None:
    # The first time makes it, the second finds it there.
    code = (
        "import sys; from phyla.store import open_store; assert 'sqlalchemy' not in sys.modules; "
        "opened = lambda url: [open_store(url).find_study('s') for _ in range(2)]; "
        "assert opened(sys.argv[1]) == [None, None]; "
        "assert 'sqlalchemy.dialects.postgresql' not in sys.modules; "
        "assert opened(sys.argv[2]) == [None, None]; "
        "assert not {'scipy', 'sqlalchemy.orm'} & set(sys.modules)"
    )
    command = [sys.executable, "-c", code, f"sqlite:///{tmp_path}/store.db", postgres_url]
    subprocess.run(command, check=True, timeout=180)


def test_a_member_has_one_unfinished_trial(url: str) -> None:
    store = open_store(url)
    store.create_study("s", {}, 1, 1)
    insert = (
        "INSERT INTO jobs (id, study, member, generation, kind, state, params, start_step, end_step, age, seed, "
        "reason, token, failures, created_at) "
        "VALUES (:id, 1, 0, 0, 'train', :state, '{}', 0, 1, 0, 1, '{}', 1, 0, 0)"
    )
    backend = _made(url)
    with backend.engine.begin() as connection:
        connection.execute(sa.text(insert), {"id": 1, "state": "pending"})
    with pytest.raises(sa.exc.IntegrityError), backend.engine.begin() as connection:
        connection.execute(sa.text(insert), {"id": 2, "state": "running"})
    backend.engine.dispose()
    store.close()


def test_a_group_has_a_shard_once_unless_it_was_cancelled(url: str) -> None:
    store = open_store(url)
    study = store.create_study("s", {}, kind=StudyKind.DIRECTORY, location="/c")
    with store.transaction(study.id, exclusive=True) as tx:
        tx.apply(observe(tx, suites(), found("c0")))
        shard = tx.eval_jobs()[0]

    def insert() -> None:
        with store.transaction(study.id, exclusive=True) as tx:
            tx.apply([InsertJobs([shard])])

    with pytest.raises(StoreError, match=r"eval_jobs_key|UNIQUE.*jobs\.shard"):
        insert()
    with store.transaction(study.id, exclusive=True) as tx:
        tx.apply([Update(replace(shard, state=JobState.CANCELLED, ended_at=tx.now()))])
    insert()
    with pytest.raises(StoreError, match=r"eval_jobs_key|UNIQUE.*jobs\.shard"):
        insert()
    store.close()


def test_an_invariant_that_is_violated_is_explained(url: str) -> None:
    store = open_store(url)
    store.create_study("s", {}, 1, 1)

    def violate() -> None:
        with store.transaction(1, exclusive=True) as tx:
            tx.apply([Update(replace(tx.locked_member(0), state=MemberState.RUNNING))])

    with raises(StoreError, "members_running_has_trial"):
        violate()
    store.close()


STATEMENTS = (transaction, read_evaluation, read_jobs, read_population, sqlite, store)
"""Modules that have statements."""


def _statements(backend: Backend) -> Iterator[tuple[str, str]]:
    """Return every statement by its name and module, as it is run."""
    for module in STATEMENTS:
        for name, value in vars(module).items():
            for number, statement in enumerate(value if isinstance(value, tuple) else (value,)):
                if isinstance(statement, (sa.Select, sa.CompoundSelect, sa.Insert, sa.Update, sa.Delete)):
                    label = f"{module.__name__.rpartition('.')[2]}.{name.lstrip('_')}"
                    yield (
                        f"{label}.{number}" if isinstance(value, tuple) else label,
                        backend.compile_statement(statement, locks=True),
                    )
    for table, columns in (
        (tables.members, ("state", "head")),
        (tables.jobs, ("state", "order")),
        (tables.attempts, ("state",)),
        (tables.checkpoints, ("state",)),
        (tables.eval_groups, ("state", "values")),
    ):
        is_row = [column == sa.bindparam(f"key_{column.key}") for column in table.primary_key]
        yield f"update {table.name}", backend.compile_statement(table.update().where(*is_row), columns, locks=True)


def test_no_statement_scans_a_table(tmp_path: Path) -> None:
    backend = _made(f"sqlite:///{tmp_path}/store.db")
    scanning, sorting = set(), set()
    statements = dict(_statements(backend))
    assert len(statements) > 100
    with backend.engine.connect() as connection:
        for name, statement in statements.items():
            nothing = dict.fromkeys(re.findall(r":(\w+)", statement))
            for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", nothing):
                if "SCAN" in row[3] and row[3] != "SCAN CONSTANT ROW":
                    scanning.add(name)
                if "TEMP B-TREE" in row[3]:
                    sorting.add(name)
    backend.engine.dispose()
    assert scanning == MAY_SCAN
    assert sorting == MAY_SORT


def test_questions_about_trials_do_not_look_at_all_jobs_of_a_study(tmp_path: Path) -> None:
    backend = _made(f"sqlite:///{tmp_path}/store.db")
    statements = dict(_statements(backend))
    indexes = {
        "TRIALS": "trials_by_study",
        "UNFINISHED": "trials_unfinished",
        "CHECKPOINTS_IN_USE": "trials_unfinished",
        "SCORES": "trials_best",
        "FINAL_TRIALS": "trials_final",
        "ABANDONED": "trials_ended_at",
        "ENDED": "trials_ended_at",
        "LAST_COMPLETED": "trials_ended_at",
        "BROKEN_IN_A_ROW": "trials_ended_at",
        "RESULTS": "trials_generation",
        "BEST": "trials_best",
    }
    with backend.engine.connect() as connection:
        for name, index in indexes.items():
            statement = statements[f"read_population.{name}"]
            nothing = dict.fromkeys(re.findall(r":(\w+)", statement))
            plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", nothing).first()
            assert plan is not None
            assert f"SEARCH jobs USING INDEX {index} " in plan[3], name
    backend.engine.dispose()


def test_deleting_a_study_looks_up_what_refers_to_its_trials(tmp_path: Path) -> None:
    # SQLite looks for rows that refer to each row that it deletes: without an index, at all of them.
    backend = _made(f"sqlite:///{tmp_path}/store.db")
    referring = [
        (table, column)
        for table in tables.metadata.tables.values()
        for column in table.columns
        if column.foreign_keys
    ]
    assert len(referring) > 8
    with backend.engine.connect() as connection:
        for table, column in referring:
            query = f"EXPLAIN QUERY PLAN SELECT 1 FROM {table.name} WHERE {column.name} = 1"
            assert "SCAN" not in connection.exec_driver_sql(query).one()[3], (table.name, column.name)
    backend.engine.dispose()
