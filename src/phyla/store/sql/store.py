"""The store on a SQL database."""

import contextlib
import os
import uuid
from collections.abc import Sequence
from types import TracebackType
from typing import Any, final

from phyla.errors import StoreError, StudyNotFound
from phyla.records import JsonObject, MemberState, RunKind, RunRecord, RunState, StudyRecord, StudyState, storable
from phyla.store.contract import StoreIdentity
from phyla.store.sql.backend import Backend, Cursor, Session, StudyLock, Watch
from phyla.store.sql.codec import encode
from phyla.store.sql.deleting import delete_study
from phyla.store.sql.evaluation import SqlEvaluation
from phyla.store.sql.evaluation_rows import run_record
from phyla.store.sql.rows import Values, study_record, text
from phyla.store.sql.schema import ensure_schema
from phyla.store.sql.transaction import SqlTransaction


@final
class SqlStore:
    """Remembers studies in a SQL database. Safe for use by several threads and processes.

    Args:
        backend: the database; its schema is created as needed.

    Raises:
        StoreUnavailable: it cannot be opened or reached.
        SchemaMismatch: it was made by a newer version of phyla.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._process = os.getpid()
        self._watching: list[_Changes] = []
        try:
            ensure_schema(backend)
        except Exception as error:
            backend.close()
            raise _explained(backend, error) from error

    @property
    def url(self) -> str:
        """Where it is, without any password."""
        return self._backend.url

    def identity(self) -> StoreIdentity:
        """Return which store this is; the first call makes its id, and so does one that finds it copied."""
        with _Block(self, write=False) as session:
            found, place = self._identity(session.cursor)
        if found is None or found[1] != place:
            return self._identify(found)
        return StoreIdentity(id=found[0], copied_from=found[2], lasting=self._backend.lasting)

    def renew_identity(self) -> StoreIdentity:
        """Give the store another id, because it was restored in place from a backup, and return it."""
        with _Block(self, write=False) as session:
            found, _ = self._identity(session.cursor)
        return self._identify(found)

    def _identify(self, old: Any) -> StoreIdentity:
        sql = self._backend.statements
        with _Block(self, write=True) as session:
            cursor = session.cursor
            values = {"slot": 1, "id": uuid.uuid4().hex, "place": self._backend.place(cursor)}
            if old is None:
                cursor.execute(sql.insert_identity, {**values, "copied_from": None})
            else:
                del values["slot"]
                cursor.execute(sql.replace_identity, {**values, "copied_from": old[0], "k_name": old[0]})
            found, _ = self._identity(cursor)
        return StoreIdentity(id=found[0], copied_from=found[2], lasting=self._backend.lasting)

    def _identity(self, cursor: Cursor) -> tuple[Any, str]:
        """Return the row of the store's identity, or None, and where the database is now."""
        cursor.execute(self._backend.statements.identity, {})
        return cursor.fetchone(), self._backend.place(cursor)

    def create_study(self, name: str, config: JsonObject, seed: int, population_size: int) -> StudyRecord:
        """Create a study with all members ready, or return the one that exists under that name."""
        sql = self._backend.statements
        with _Block(self, write=True) as session:
            cursor = session.cursor
            cursor.execute(sql.study_by_name, {"k_name": name})
            found = cursor.fetchone()
            if found is None:
                values = {
                    "name": name,
                    "state": StudyState.RUNNING.value,
                    "config": encode(config),
                    "seed": seed,
                    "population_size": population_size,
                    "created_at": self._backend.now(cursor),
                }
                cursor.execute(sql.insert_study, values)
                key = cursor.fetchone()
                if key is not None:
                    study = self._backend.fresh_id(cursor, "studies", key[0])
                    ready = MemberState.READY.value
                    cursor.executemany(
                        sql.insert_member,
                        [{"study": study, "member": member, "state": ready} for member in range(population_size)],
                    )
                cursor.execute(sql.study_by_name, {"k_name": name})
                found = cursor.fetchone()
            return study_record(found)

    def find_study(self, name: str) -> StudyRecord | None:
        """Return a study by name, or None."""
        with _Block(self, write=False) as session:
            session.cursor.execute(self._backend.statements.study_by_name, {"k_name": name})
            row = session.cursor.fetchone()
            return None if row is None else study_record(row)

    def studies(self) -> Sequence[StudyRecord]:
        """Return all studies by id."""
        with _Block(self, write=False) as session:
            session.cursor.execute(self._backend.statements.all_studies, {})
            return [study_record(row) for row in session.cursor.fetchall()]

    def delete_study(self, study: int, *, worker: str | None = None) -> None:
        """Delete a study, with its run and all that is known of both; see `phyla.store.Store`."""
        backend = self._backend
        with _Block(self, write=True) as session:
            cursor = session.cursor
            record, now = backend.study(cursor, study, "alone")
            if record is None:
                raise StudyNotFound(f"there is no study with id {study} in {self.url}")
            backend.keep_ids(cursor)
            delete_study(cursor, backend.engine.dialect, study, record.name, now, worker)

    def set_state(self, study: int, state: StudyState, message: str | None = None) -> None:
        """Set the state of a study; that it is running says that it is resumed."""
        with _Block(self, write=True) as session:
            sql = self._backend.statements
            values: Values = {"k_study": study, "state": state.value, "message": text(message)}
            self._backend.announce(session.cursor)
            if state is StudyState.RUNNING:
                resumed = {**values, "resumed_at": self._backend.now(session.cursor)}
                session.cursor.execute(sql.resume_study, resumed)
                session.cursor.execute(sql.retry_given_up, {"k_study": study})
            else:
                session.cursor.execute(sql.set_study_state, values)

    def transaction(self, study: int, *, exclusive: bool, alone: bool = False) -> "_Opened":
        """Open a writing transaction on one study; see `phyla.store.Store`."""
        lock: StudyLock = "alone" if alone else "exclusive" if exclusive else "shared"
        return _Opened(self, study, lock)

    def reader(self, study: int) -> "_Opened":
        """Open a consistent look at one study."""
        return _Opened(self, study, None)

    def create_run(
        self, name: str, kind: RunKind, config: JsonObject, *, study: int | None = None, location: str = ""
    ) -> RunRecord:
        """Create a run, or return the one that exists under that name."""
        sql = self._backend.statements.evaluation
        with _Block(self, write=True) as session:
            cursor = session.cursor
            cursor.execute(sql.run_by_name, {"k_name": name})
            found = cursor.fetchone()
            if found is None:
                values = {
                    "name": name,
                    "kind": kind.value,
                    "study": study,
                    "location": storable(location),
                    "state": RunState.FOLLOWING.value,
                    "config": encode(config),
                    "created_at": self._backend.now(cursor),
                }
                cursor.execute(sql.insert_run, values)
                cursor.execute(sql.run_by_name, {"k_name": name})
                self._backend.fresh_id(cursor, "runs", cursor.fetchone()[0])
                cursor.execute(sql.run_by_name, {"k_name": name})
                found = cursor.fetchone()
            return run_record(found)

    def find_run(self, name: str) -> RunRecord | None:
        """Return a run by name, or None."""
        with _Block(self, write=False) as session:
            session.cursor.execute(self._backend.statements.evaluation.run_by_name, {"k_name": name})
            row = session.cursor.fetchone()
            return None if row is None else run_record(row)

    def runs(self) -> Sequence[RunRecord]:
        """Return all runs by id."""
        with _Block(self, write=False) as session:
            session.cursor.execute(self._backend.statements.evaluation.all_runs, {})
            return [run_record(row) for row in session.cursor.fetchall()]

    def set_run_config(self, run: int, config: JsonObject) -> None:
        """Replace the configuration of a run, and follow it again if it had ended."""
        with _Block(self, write=True) as session:
            values = {"k_run": run, "config": encode(config), "state": RunState.FOLLOWING.value, "message": None}
            session.cursor.execute(self._backend.statements.evaluation.set_run_config, values)

    def evaluating(self, run: RunRecord, *, exclusive: bool = True) -> "_OpenedRun":
        """Open a writing transaction on one run, and on its study if it has one; see `phyla.store.Store`."""
        return _OpenedRun(self, run, write=True, exclusive=exclusive)

    def evaluations(self, run: RunRecord) -> "_OpenedRun":
        """Open a consistent look at the evaluation of one run."""
        return _OpenedRun(self, run, write=False, exclusive=False)

    def changes(self) -> "_Changes":
        """Return what waits for commits, by this process or another; for one thread."""
        changes = _Changes(self._backend)
        self._watching.append(changes)
        return changes

    def close(self) -> None:
        """Release every connection."""
        for changes in self._watching:
            changes.close()
        self._backend.close()

    def _begin(self, *, write: bool) -> Session:
        if os.getpid() != self._process:
            # A child made by fork must not talk on its parent's connections.
            self._backend.forget_connections()
            self._process = os.getpid()
        try:
            return self._backend.begin(write=write)
        except Exception as error:
            raise _explained(self._backend, error) from error

    def _end(self, session: Session, error: BaseException | None) -> None:
        if error is None:
            try:
                session.commit()
            except Exception as failure:
                session.rollback()
                raise _explained(self._backend, failure) from failure
        else:
            session.rollback()
            if isinstance(error, self._backend.driver_errors):
                raise _explained(self._backend, error) from error


@final
class _Changes:
    """Waits for commits; opens its connection when it is first asked to."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._watch: Watch | None = None

    def wait(self, seconds: float) -> None:
        """Return once something was committed since the last call; see `phyla.store.Changes`."""
        try:
            if self._watch is None:
                self._watch = self._backend.watch()
            self._watch.wait(seconds)
        except Exception as error:
            self.close()
            raise _explained(self._backend, error) from error

    def close(self) -> None:
        """Release the connection."""
        watch, self._watch = self._watch, None
        if watch is not None:
            with contextlib.suppress(*self._backend.driver_errors):
                watch.close()


def found_revision(backend: Backend) -> str | None:
    """Return the revision of a database's schema, None before the first one; changes nothing.

    Raises:
        StoreUnavailable: it cannot be opened or reached.
    """
    try:
        with backend.engine.connect() as connection:
            return backend.revision(connection)
    except Exception as error:
        raise _explained(backend, error) from error
    finally:
        backend.engine.dispose()


def _explained(backend: Backend, error: Exception) -> Exception:
    """Return what to raise for an error: explained if it is the database's, else as it is."""
    origin = getattr(error, "orig", None) or error
    if isinstance(origin, StoreError) or not isinstance(origin, backend.driver_errors):
        return origin
    return backend.translated(origin)


@final
class _Block:
    """A transaction as a `with` block: commits at its end, rolls back when it raises."""

    __slots__ = ("_session", "_store", "write")

    def __init__(self, store: SqlStore, *, write: bool) -> None:
        self._store = store
        self.write = write

    def __enter__(self) -> Session:
        self._session = self._store._begin(write=self.write)
        return self._session

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._store._end(self._session, error)


@final
class _Opened:
    """A transaction on one study as a `with` block."""

    __slots__ = ("_block", "_lock", "_store", "_study")

    def __init__(self, store: SqlStore, study: int, lock: StudyLock | None) -> None:
        self._store = store
        self._study = study
        self._lock = lock
        self._block = _Block(store, write=lock is not None)

    def __enter__(self) -> SqlTransaction:
        session = self._block.__enter__()
        try:
            backend = self._store._backend
            study, now = backend.study(session.cursor, self._study, self._lock)
            if study is None:
                raise StudyNotFound(f"there is no study with id {self._study} in {self._store.url}")
            return SqlTransaction(backend, session.cursor, study, now, write=self._block.write)
        except BaseException as error:
            self._store._end(session, error)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._block.__exit__(kind, error, trace)


@final
class _OpenedRun:
    """A transaction on one run as a `with` block."""

    __slots__ = ("_block", "_exclusive", "_run", "_store")

    def __init__(self, store: SqlStore, run: RunRecord, *, write: bool, exclusive: bool) -> None:
        self._store = store
        self._run = run
        self._exclusive = exclusive
        self._block = _Block(store, write=write)

    def __enter__(self) -> SqlEvaluation:
        session = self._block.__enter__()
        try:
            return self._open(session.cursor)
        except BaseException as error:
            self._store._end(session, error)
            raise

    def _open(self, cursor: Cursor) -> SqlEvaluation:
        backend, write, study = self._store._backend, self._block.write, None
        # The study is locked before the run, and time is told once both are.
        if self._run.study is not None:
            study, _ = backend.study(cursor, self._run.study, "exclusive" if self._exclusive else None)
        run, now = backend.run(cursor, self._run.id, exclusive=self._exclusive)
        if run is None:
            raise StoreError(f"there is no run with id {self._run.id} in {self._store.url}")
        population = None
        if study is not None:
            population = SqlTransaction(backend, cursor, study, now, write=write)
        evaluation = SqlEvaluation(backend, cursor, run, now, population, write=write)
        if population is not None:
            population.evaluated_by(evaluation)
        return evaluation

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._block.__exit__(kind, error, trace)
