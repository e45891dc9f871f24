"""A store in memory: for tests, simulations and as the oracle of the other stores."""

import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, final

from phyla.errors import StoreError, StudyNotFound
from phyla.machine import SetStudyState
from phyla.records import (
    Attempt,
    AttemptState,
    EvalAttempt,
    JsonObject,
    RunKind,
    RunRecord,
    RunState,
    StudyRecord,
    StudyState,
)
from phyla.settings import Clock, system_clock
from phyla.store.contract import StoreIdentity
from phyla.store.leases import check_unheld
from phyla.store.memory_evaluation import MemoryEvaluation
from phyla.store.memory_tables import Memory, Tables
from phyla.store.memory_transaction import MemoryTransaction
from phyla.store.memory_writing import retry_given_up

LOOK_S = 0.002
"""How long a worker waits before it asks again."""


@final
class MemoryStore:
    """Keeps studies in dictionaries.

    Args:
        clock: tells the time.
    """

    def __init__(self, clock: Clock = system_clock) -> None:
        self._memory = Memory(clock)
        self._identity = StoreIdentity(id=uuid.uuid4().hex, lasting=False)

    @property
    def url(self) -> str:
        """Where it is."""
        return "memory://"

    def identity(self) -> StoreIdentity:
        """Return which store this is."""
        return self._identity

    def renew_identity(self) -> StoreIdentity:
        """Give the store another id, and return it."""
        self._identity = StoreIdentity(id=uuid.uuid4().hex, copied_from=self._identity.id, lasting=False)
        return self._identity

    def create_study(self, name: str, config: JsonObject, seed: int, population_size: int) -> StudyRecord:
        """Create a study with all members ready, or return the one that exists under that name."""
        with self._memory.lock:
            found = self.find_study(name)
            if found is not None:
                return found
            self._memory.last_study += 1
            study = StudyRecord(
                id=self._memory.last_study,
                name=name,
                state=StudyState.RUNNING,
                config=config,
                seed=seed,
                population_size=population_size,
                created_at=self._memory.clock(),
            )
            self._memory.studies[study.id] = study
            self._memory.tables[study.id] = Tables(study.id, population_size)
            return study

    def find_study(self, name: str) -> StudyRecord | None:
        """Return a study by name, or None."""
        return next((study for study in self._memory.studies.values() if study.name == name), None)

    def studies(self) -> Sequence[StudyRecord]:
        """Return all studies by id."""
        return list(self._memory.studies.values())

    def delete_study(self, study: int, *, worker: str | None = None) -> None:
        """Delete a study, with its run and all that is known of both, in one transaction."""
        memory, ledger = self._memory, self._memory.ledger
        with memory.lock:
            if study not in memory.studies:
                raise StudyNotFound(f"there is no study with id {study} in {self.url}")
            runs = {run.id for run in ledger.runs.values() if run.study == study}
            attempts: list[Attempt | EvalAttempt] = [
                *memory.tables[study].attempts.values(),
                *(attempt for attempt in ledger.attempts.values() if attempt.run in runs),
            ]
            now = memory.clock()
            check_unheld(
                memory.studies[study].name,
                [
                    (attempt.worker, attempt.expires_at - now)
                    for attempt in attempts
                    if attempt.state is AttemptState.RUNNING and attempt.expires_at > now
                ],
                worker,
            )
            elsewhere = {seen.identity for seen in ledger.seen.values() if seen.run not in runs}
            tables: tuple[dict[Any, Any], ...] = (ledger.attempts, ledger.tasks, ledger.groups, ledger.events)
            for table in (*tables, ledger.seen, ledger.results):
                for key in [key for key, row in table.items() if row.run in runs]:
                    if table is not ledger.results or key[0] not in elsewhere:
                        table.pop(key)
            for run in runs:
                del ledger.runs[run]
            del memory.tables[study], memory.studies[study]

    def set_state(self, study: int, state: StudyState, message: str | None = None) -> None:
        """Set the state of a study; that it is running says that it is resumed."""
        with self.transaction(study, exclusive=True) as tx:
            tx.apply([SetStudyState(state, message)])
            if state is StudyState.RUNNING:
                tx.set_study(replace(tx.study(), resumed_at=tx.now()))
                retry_given_up(tx)

    def transaction(self, study: int, *, exclusive: bool, alone: bool = False) -> MemoryTransaction:
        """Open a writing transaction on one study; in memory each one is alone."""
        if study not in self._memory.studies:
            raise StudyNotFound(f"there is no study with id {study} in {self.url}")
        return MemoryTransaction(self._memory, study)

    def reader(self, study: int) -> MemoryTransaction:
        """Open a consistent look at one study."""
        return self.transaction(study, exclusive=False)

    def create_run(
        self, name: str, kind: RunKind, config: JsonObject, *, study: int | None = None, location: str = ""
    ) -> RunRecord:
        """Create a run, or return the one that exists under that name."""
        with self._memory.lock:
            found = self.find_run(name)
            if found is not None:
                return found
            self._memory.last_run += 1
            run = RunRecord(
                id=self._memory.last_run,
                name=name,
                kind=kind,
                study=study,
                location=location,
                config=config,
                created_at=self._memory.clock(),
            )
            self._memory.ledger.runs[run.id] = run
            return run

    def find_run(self, name: str) -> RunRecord | None:
        """Return a run by name, or None."""
        return next((run for run in self._memory.ledger.runs.values() if run.name == name), None)

    def runs(self) -> Sequence[RunRecord]:
        """Return all runs by id."""
        return list(self._memory.ledger.runs.values())

    def set_run_config(self, run: int, config: JsonObject) -> None:
        """Replace the configuration of a run, and follow it again if it had ended."""
        with self._memory.lock:
            old = self._memory.ledger.runs[run]
            self._memory.ledger.runs[run] = replace(old, config=config, state=RunState.FOLLOWING, message=None)

    @contextmanager
    def evaluating(self, run: RunRecord, *, exclusive: bool = True) -> Iterator[MemoryEvaluation]:
        """Open a writing transaction on one run, and on its study if it has one."""
        with self._memory.lock:
            if run.id not in self._memory.ledger.runs:
                raise StoreError(f"there is no run with id {run.id} in {self.url}")
            population = None if run.study is None else MemoryTransaction(self._memory, run.study)
            evaluation = MemoryEvaluation(self._memory.ledger, run.id, self._memory.clock(), population)
            try:
                yield evaluation
            except BaseException:
                evaluation.undo()
                raise

    @contextmanager
    def evaluations(self, run: RunRecord) -> Iterator[MemoryEvaluation]:
        """Open a consistent look at the evaluation of one run."""
        with self.evaluating(run) as evaluation:
            yield evaluation

    def changes(self) -> "_Changes":
        """Return what waits for commits."""
        return _Changes()

    def close(self) -> None:
        """Nothing is open."""


@final
class _Changes:
    """Only threads of this process commit, and they rarely wait for each other: asking again is cheap."""

    def wait(self, seconds: float) -> None:
        """Wait a moment."""
        time.sleep(min(seconds, LOOK_S))

    def close(self) -> None:
        """Nothing is open."""
