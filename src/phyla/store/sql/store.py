"""The store on a SQL database."""

import contextlib
import logging
import os
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, final

import sqlalchemy as sa

from phyla.errors import ConnectionLost, StateError, StoreError, StoreUnavailable, StudyNotFound
from phyla.records import FileName, JsonObject, Member, MemberState, StudyKind, StudyRecord, StudyState, Token
from phyla.store.contract import P, Query, R, StoreIdentity
from phyla.store.retry import repeatable, retry_on
from phyla.store.sql.backend import Backend, SqlSession, StudyLock, Watch
from phyla.store.sql.rows import MEMBERS, STUDIES, TOKENS, Values
from phyla.store.sql.schema import ensure_schema
from phyla.store.sql.scope import parameter
from phyla.store.sql.tables import (
    EVALUATED,
    attempts,
    checkpoints,
    eval_results,
    jobs,
    metadata,
    store_identity,
    studies,
    tokens,
)
from phyla.store.sql.transaction import RETRY_GIVEN_UP, SqlTransaction
from phyla.system.patience import Patience

_i = store_identity.c
_IDENTITY = sa.select(_i.id, _i.place, _i.copied_from).where(_i.slot == 1)
_NEW = {"id": sa.bindparam("new_id", type_=sa.Text), "place": sa.bindparam("new_place", type_=sa.Text)}
_OLD = sa.bindparam("old_id", type_=sa.Text)
# Of several processes that find a copy, one gives it an id.
_REPLACE_IDENTITY = store_identity.update().where(_i.slot == 1, _i.id == _OLD).values(copied_from=_OLD, **_NEW)

_STUDY_BY_NAME = sa.select(studies).where(studies.c.name == parameter("name"))
_WATCHING = sa.select(studies).where(studies.c.source == parameter("study")).order_by(studies.c.id)
_ALL_TOKENS = sa.select(tokens).order_by(tokens.c.name)
_TOKEN = sa.select(tokens).where(tokens.c.name == parameter("name"))
_REVOKE = tokens.delete().where(tokens.c.name == parameter("name"))
ALL_STUDIES = sa.select(studies).order_by(studies.c.id)

_STUDY = parameter("study")
# With the studies that watch it.
_IDS = sa.select(studies.c.id).where(sa.or_(studies.c.id == _STUDY, studies.c.source == _STUDY))
_c = checkpoints.c
_ELSEWHERE = sa.exists().where(EVALUATED, _c.identity == eval_results.c.identity, _c.study.not_in(_IDS))
_DELETIONS = (
    eval_results.delete().where(eval_results.c.study.in_(_IDS), ~_ELSEWHERE),
    attempts.delete().where(attempts.c.job.in_(sa.select(jobs.c.id).where(jobs.c.study.in_(_IDS)))),
    *(
        table.delete().where(table.c.study.in_(_IDS))
        for table in reversed(metadata.sorted_tables)  # referring tables before referred ones
        if "study" in table.c and table not in (eval_results, attempts)
    ),
    studies.delete().where(studies.c.source == _STUDY),
    studies.delete().where(studies.c.id == _STUDY),
)

LOG = logging.getLogger("phyla")


@final
class SqlStore:
    """Remembers studies in a SQL database. Safe for use by several threads and processes.

    Args:
        backend: the database; its schema is created as needed.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._process = os.getpid()
        self._patience_s = 0.0
        self._watching: list[_Changes] = []
        try:
            ensure_schema(backend)
        except Exception as error:
            backend.close()
            raise explain_error(backend, error) from error

    @property
    def url(self) -> str:
        return self._backend.url

    def hold_on(self, seconds: float) -> None:
        self._patience_s = seconds if self._backend.served else 0.0

    @retry_on(ConnectionLost)
    def identity(self) -> StoreIdentity:
        with self._session(write=False) as session:
            row, place = session.row(_IDENTITY, {}), self._backend.place(session)
        return self._identify(row) if row is None or row[1] != place else self._make_identity(row)

    def renew_identity(self) -> StoreIdentity:
        with self._session(write=False) as session:
            row = session.row(_IDENTITY, {})
        return self._identify(row)

    def _identify(self, old: Any) -> StoreIdentity:
        with self._session(write=True) as session:
            values = {"new_id": uuid.uuid4().hex, "new_place": self._backend.place(session)}
            if old is None:
                new = self._backend.insert(store_identity).values(slot=1, **_NEW)
                session.run(new.on_conflict_do_nothing(index_elements=["slot"]), values)
            else:
                session.run(_REPLACE_IDENTITY, {**values, "old_id": old[0]})
            row = session.row(_IDENTITY, {})
        return self._make_identity(row)

    def _make_identity(self, row: Any) -> StoreIdentity:
        return StoreIdentity(id=row[0], copied_from=row[2], lasting=self._backend.lasting)

    @retry_on(ConnectionLost)
    def create_study(
        self,
        name: str,
        config: JsonObject,
        seed: int = 0,
        population_size: int = 0,
        *,
        kind: StudyKind = StudyKind.POPULATION,
        location: FileName = "",
        source: int | None = None,
    ) -> StudyRecord:
        with self._session(write=True) as session:
            record = session.first(STUDIES, _STUDY_BY_NAME, {"name": name})
            if record is not None:
                return record
            study = StudyRecord(
                id=0,
                name=name,
                kind=kind,
                state=StudyState.RUNNING,
                config=config,
                seed=seed,
                population_size=population_size,
                created_at=self._backend.now(session),
                location=location,
                source=source,
            )
            key = session.insert_once(STUDIES, study)
            if key is not None:
                ready = Member(study=key, index=0, state=MemberState.READY)
                session.insert_all(MEMBERS, (replace(ready, index=index) for index in range(population_size)))
            record = session.first(STUDIES, _STUDY_BY_NAME, {"name": name})
            assert record is not None
            return record

    @retry_on(ConnectionLost)
    def find_study(self, name: str) -> StudyRecord | None:
        with self._session(write=False) as session:
            return session.first(STUDIES, _STUDY_BY_NAME, {"name": name})

    @retry_on(ConnectionLost)
    def studies(self) -> Sequence[StudyRecord]:
        with self._session(write=False) as session:
            return session.all(STUDIES, ALL_STUDIES, {})

    def delete_study(self, study: int) -> None:
        with self._session(write=True) as session:
            self._lock_study(session, study, "alone")
            # A claim in a watching study holds no lock on this one.
            for watching in session.all(STUDIES, _WATCHING, {"study": study}):
                self._lock_study(session, watching.id, "alone")
            for deletion in _DELETIONS:
                session.run(deletion, {"study": study})

    @retry_on(ConnectionLost)
    def set_state(self, study: int, state: StudyState, message: str | None = None) -> None:
        with self._session(write=True) as session:
            changes: Values = {"state": state, "message": message}
            self._backend.announce(session)
            if state is StudyState.RUNNING:
                changes["resumed_at"] = self._backend.now(session)
            session.set(STUDIES, (study,), STUDIES.write_values(changes))
            if state is StudyState.RUNNING:
                session.run(RETRY_GIVEN_UP, {"study": study})

    @retry_on(ConnectionLost)
    def tokens(self) -> Sequence[Token]:
        with self._session(write=False) as session:
            return session.all(TOKENS, _ALL_TOKENS, {})

    def add_token(self, token: Token) -> None:
        with self._session(write=True) as session:
            if session.first(TOKENS, _TOKEN, {"name": token.name}) is not None:
                raise StateError(f"there is a token {token.name!r} already; revoke it, or choose another name")
            session.insert_all(TOKENS, [token])

    def revoke_token(self, name: str) -> None:
        with self._session(write=True) as session:
            if session.first(TOKENS, _TOKEN, {"name": name}) is None:
                raise StateError(f"there is no token {name!r} in {self.url}")
            session.run(_REVOKE, {"name": name})

    @contextlib.contextmanager
    def transaction(
        self, study: int, *, exclusive: bool, alone: bool = False, source: int | None = None
    ) -> Iterator[SqlTransaction]:
        with self._session(write=True) as session:
            if source is not None and exclusive:
                self._backend.study(session, source, "exclusive")
            lock: StudyLock = "alone" if alone else "exclusive" if exclusive else "shared"
            yield SqlTransaction(session, *self._lock_study(session, study, lock))

    @contextlib.contextmanager
    def reader(self, study: int) -> Iterator[SqlTransaction]:
        with self._session(write=False) as session:
            yield SqlTransaction(session, *self._lock_study(session, study, None))

    @repeatable
    def look(self, study: int, query: Query[P, R], /, *args: P.args, **named: P.kwargs) -> R:
        """Ask a query about one study, in one transaction."""
        with self.reader(study) as reader:
            return query(reader, *args, **named)

    def _lock_study(self, session: SqlSession, study: int, lock: StudyLock | None) -> tuple[StudyRecord, float]:
        record, now = self._backend.study(session, study, lock)
        if record is None:
            raise StudyNotFound(f"there is no study with id {study} in {self.url}")
        return record, now

    def changes(self) -> "_Changes":
        changes = _Changes(self._backend)
        self._watching.append(changes)
        return changes

    def close(self) -> None:
        for changes in self._watching:
            changes.close()
        self._backend.close()

    def _begin(self, *, write: bool) -> SqlSession:
        patience, away = Patience(lambda: self._patience_s), False
        while True:
            try:
                return self._backend.begin(write=write)
            except self._backend.driver_errors as error:
                problem = self._backend.translate_error(error)
                if not isinstance(problem, StoreUnavailable) or patience.over:
                    raise
                if not away:
                    LOG.warning("%s; trying again", problem)
                away = True
            patience.pause()

    @contextlib.contextmanager
    def _session(self, *, write: bool) -> Iterator[SqlSession]:
        """Open a session; commit at the end, or roll back when the block raises."""
        if os.getpid() != self._process:
            # A child made by fork must not talk on its parent's connections.
            self._backend.forget_connections()
            self._process = os.getpid()
        session = None
        try:
            session = self._begin(write=write)
            yield session
            session.commit()
        except BaseException as error:
            if session is not None:
                session.rollback()
            problem = explain_error(self._backend, error)
            if session is not None and self._backend.served and isinstance(problem, StoreUnavailable):
                problem = ConnectionLost(str(problem))
            if problem is error:
                raise
            raise problem from error


IDLE_S = 2.0
"""Commits, and waits of known length, wake a worker; asking without either only finds expired leases."""


@final
class _Changes:
    """Waits for commits; opens its connection when it is first asked to."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._watch: Watch | None = None
        self.idle_s = IDLE_S

    def wait(self, seconds: float) -> bool:
        try:
            if self._watch is None:
                self._watch = self._backend.watch()
            return self._watch.wait(seconds)
        except Exception as error:
            self.close()
            problem = explain_error(self._backend, error)
            if not isinstance(problem, StoreUnavailable):
                raise problem from error
            # The next read waits for the server as long as the patience lasts.
            time.sleep(min(seconds, 1.0))
            return True

    def close(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            with contextlib.suppress(*self._backend.driver_errors):
                watch.close()


def explain_error(backend: Backend, error: BaseException) -> BaseException:
    """Return what to raise for an error: explained if it is the database's, else as it is."""
    origin = getattr(error, "orig", None) or error
    if isinstance(origin, StoreError) or not isinstance(origin, backend.driver_errors):
        return origin
    return backend.translate_error(origin)
