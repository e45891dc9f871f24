"""The black-box form (Li et al. 2019, section 3): code in any language gets suggestions and reports results.

The client names the checkpoints, keeps their bytes, and deletes those that are no longer needed.
"""

import math
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path as FilePath
from typing import Annotated, Any, TypeVar, final

from fastapi import APIRouter, Query
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from phyla.configuration import to_config
from phyla.controller import Controller, StudyRecords
from phyla.errors import StateError, StudyNotFound, UsageError
from phyla.machine import Accepted, Claimed, Completion, Ended, Failure, Idle, Stopped, TrainRules
from phyla.records import (
    AttemptState,
    Checkpoint,
    CheckpointState,
    Report,
    Role,
    StudyKind,
    StudyRecord,
    TrialRecord,
)
from phyla.service.access import Doors, may
from phyla.service.changes import News
from phyla.service.messages import (
    BIG,
    Completed,
    Deleted,
    Failed,
    GoOn,
    Id,
    Leased,
    Name,
    Renewed,
    ReportedStep,
    Saved,
    StudyTable,
    StudyView,
    Suggestion,
    Suggestions,
    TrialView,
    Unneeded,
    Wanted,
)
from phyla.service.studies import Studies
from phyla.settings import system_clock
from phyla.store import Reader
from phyla.study.files.tables import Where
from phyla.study.files.toml import study_of

View = TypeVar("View", bound=BaseModel)


def black_box(studies: Studies, doors: Doors, news: News) -> APIRouter:
    """Return the routes."""
    router = APIRouter(prefix="/v1/studies", tags=["black box"])
    box, of_trial = _BlackBox(studies, news), "/{name}/trials/{trial}"
    for method, path, endpoint, role in (
        ("GET", "", box.list_studies, Role.VIEWER),
        ("POST", "", box.create_study, Role.OPERATOR),
        ("GET", "/{name}", box.look, Role.VIEWER),
        ("GET", "/{name}/trials", box.list_trials, Role.VIEWER),
        ("POST", "/{name}/suggestions", box.suggest, Role.WORKER),
        ("POST", f"{of_trial}/report", box.report, Role.WORKER),
        ("POST", "/{name}/renew", box.renew, Role.WORKER),
        ("POST", f"{of_trial}/complete", box.complete, Role.WORKER),
        ("POST", f"{of_trial}/fail", box.fail, Role.WORKER),
        ("POST", f"{of_trial}/release", box.release, Role.WORKER),
        ("POST", "/{name}/collect", box.collect, Role.WORKER),
    ):
        router.add_api_route(path, endpoint, methods=[method], dependencies=[may(doors, role)])
    return router


@final
class _BlackBox:
    """Answers requests: each public method is a route, and its docstring is the route's description."""

    def __init__(self, studies: Studies, news: News) -> None:
        self._studies, self._store, self._news = studies, studies.store, news

    def list_studies(self) -> list[StudyView]:
        """List the studies."""
        records = self._store.studies()
        return [self._view(record) for record in records if record.kind is StudyKind.POPULATION]

    def create_study(self, table: StudyTable) -> StudyView:
        """Create a study, or return the existing one with the same name and settings."""
        study = study_of(table.model_dump(), Where(FilePath("request"), imports=False), runs=False)
        config = to_config(study.rules, study.seed)
        members = study.rules.strategy.population_size
        return self._view(self._studies.create(study.name, config, study.seed, members))

    def look(self, name: Name) -> StudyView:
        """Return the state of a study."""
        return self._view(self._study(name))

    def list_trials(
        self,
        name: Name,
        after: Annotated[int, Query(ge=0, lt=BIG, description="The id above which to begin.")] = 0,
        limit: Annotated[int, Query(ge=1, le=1000, description="The most trials to return.")] = 100,
    ) -> list[TrialView]:
        """List trials by id, from the first id above `after`."""
        with self._reader(name) as reader:
            return [_view(TrialView, trial) for trial in reader.trials(after=after, limit=limit)]

    async def suggest(self, name: Name, wanted: Wanted) -> Suggestions:
        """Get trials to train."""
        ends_at = time.monotonic() + wanted.wait_s
        while True:
            change = self._news.change
            answer, wait_s = await run_in_threadpool(lambda: _claim(self._controller(name), wanted))
            left_s = min(ends_at - time.monotonic(), math.inf if wait_s is None else wait_s)
            if answer.suggestions or answer.ended or left_s <= 0:
                return answer
            await self._news.after(change, left_s)

    def report(self, name: Name, trial: Id, reported: ReportedStep) -> GoOn:
        """Report metrics, renew the lease, and return whether to continue.

        Repeating the same step and metrics, for example after a lost answer, counts once.
        """
        controller = self._controller(name)
        with self._reader(name) as reader:
            _check_step(reader, trial, reported.step)
        standing = controller.report(trial, reported.token, [Report(reported.step, reported.metrics)])
        if standing.stop_reason is not None:
            return GoOn(go_on=False, why=f"a rule stopped the trial: {standing.stop_reason}")
        if standing.cancelled:
            return GoOn(go_on=False, why="the lease is gone: another worker has the trial, or it was cancelled")
        with self._reader(name) as reader:
            attempt = reader.attempt(trial, reported.token)
        if attempt is not None:
            controller.renew(attempt.worker)
        return GoOn(go_on=True)

    def renew(self, name: Name, renewed: Renewed) -> GoOn:
        """Renew all leases of a worker."""
        self._controller(name).renew(renewed.worker)
        return GoOn(go_on=True)

    def complete(self, name: Name, trial: Id, saved: Saved) -> Completed:
        """Submit the checkpoint of a trial with its last metrics. Repeating the request gives the same answer.

        A second submission with another checkpoint or other metrics does not count; the answer has the first.
        """
        controller = self._controller(name)
        assert isinstance(controller.rules, TrainRules)
        with self._reader(name) as reader:
            completion = _completion(reader, controller.rules.reported_metrics, trial, saved)
        (answer,), _, _ = controller.complete([completion])
        if isinstance(answer, Stopped):
            return Completed(counts=False, why=f"a rule stopped the trial: {answer.reason}")
        if not isinstance(answer, Accepted):
            raise answer
        with self._reader(name) as reader:
            difference = _difference(reader.trial(trial), saved)
        if difference is not None:
            return Completed(counts=False, why=f"the trial was submitted before, with {difference}")
        return Completed(counts=True, fitness=answer.fitness)

    def fail(self, name: Name, trial: Id, failed: Failed) -> GoOn:
        """Report that an attempt failed."""
        self._check_trial(name, trial)
        failure = Failure(job=trial, token=failed.token, error=failed.error, retryable=failed.retryable)
        self._controller(name).fail(failure)
        return self._end(name, trial, failed.token, AttemptState.FAILED)

    def release(self, name: Name, trial: Id, leased: Leased) -> GoOn:
        """Return a trial to the queue; this does not count as a failure."""
        self._check_trial(name, trial)
        self._controller(name).release(trial, leased.token)
        return self._end(name, trial, leased.token, AttemptState.RELEASED)

    def collect(self, name: Name, done: Deleted) -> Unneeded:
        """List the checkpoints that are no longer needed, until the client reports their deletion."""
        records = StudyRecords(self._store, self._study(name).id)
        deleted = [checkpoint for checkpoint in self._unneeded(name) if checkpoint in {*done.deleted}]
        records.set_checkpoints(deleted, CheckpointState.DELETED)
        records.mark_deleting([row for row in self._controller(name).retention().collectable if row.weak])
        return Unneeded(checkpoints=self._unneeded(name))

    def _study(self, name: str) -> StudyRecord:
        record = self._store.find_study(name)
        if record is None or record.kind is not StudyKind.POPULATION:
            raise StudyNotFound(f"no study {name!r}")
        return record

    def _controller(self, name: str) -> Controller:
        return self._studies.controller(self._study(name).id)

    def _reader(self, name: str) -> AbstractContextManager[Reader]:
        return self._store.reader(self._study(name).id)

    def _view(self, record: StudyRecord) -> StudyView:
        with self._store.reader(record.id) as reader:
            counts = reader.counts()
        fields = {name: getattr(record, name) for name in ("name", "state", "message", "population_size")}
        return StudyView(**fields, trials=counts)

    def _check_trial(self, name: str, trial: int) -> None:
        with self._reader(name) as reader:
            _trial(reader, trial)

    def _end(self, name: str, trial: int, token: int, meant: AttemptState) -> GoOn:
        """Return the answer to a request that ends an attempt, with a reason if it ended otherwise."""
        with self._reader(name) as reader:
            attempt = reader.attempt(trial, token)
        why = (
            None
            if attempt is None or attempt.state is meant
            else f"the request does not count: the attempt is {attempt.state}"
        )
        return GoOn(go_on=False, why=why)

    def _unneeded(self, name: str) -> list[str]:
        """Return the checkpoints of black-box clients that no trial will start from."""
        with self._reader(name) as reader:
            return [row.name for row in reader.checkpoints(CheckpointState.DELETING) if row.weak]


def _trial(reader: Reader, trial: int) -> TrialRecord:
    """Return a trial by id; 404 if there is none."""
    for record in reader.trials(after=trial - 1, limit=1):
        if record.id == trial:
            return record
    raise HTTPException(404, f"study {reader.study().name!r} has no trial {trial}")


def _check_step(reader: Reader, trial: int, step: int, *, least: int = 0) -> None:
    """Reject a step outside a trial."""
    record = _trial(reader, trial)
    if not min(record.start_step + least, record.end_step) <= step <= record.end_step:
        raise UsageError(f"step {step}: trial {trial} trains from {record.start_step} to {record.end_step}")


def _claim(controller: Controller, wanted: Wanted) -> tuple[Suggestions, float | None]:
    """Claim trials; return them, and the longest wait before the next try."""
    held = None if wanted.held is None else frozenset(wanted.held)
    _, jobs, rest = controller.complete((), wanted.worker, wanted.count, held=held)
    suggestions = [
        _view(Suggestion, job.trial, checkpoint=job.trial.parent_checkpoint, expires_at=job.expires_at)
        for job in jobs
        if isinstance(job, Claimed)
    ]
    if suggestions or not isinstance(rest, Idle):
        why = getattr(rest, "message", None) or (f"the study is {rest.state}" if isinstance(rest, Ended) else None)
        return Suggestions(suggestions=suggestions, ended=isinstance(rest, Ended), why=why), None
    return Suggestions(suggestions=[], ended=False, why=rest.why), rest.seconds


def _completion(reader: Reader, needed: Sequence[str], trial: int, saved: Saved) -> Completion:
    """Return the completion that a client submitted; raise if it does not fit the trial."""
    study, row = reader.study().id, reader.checkpoint(saved.checkpoint)
    _check_step(reader, trial, saved.step, least=1)
    if row is not None and row.trial != trial and not _trial(reader, trial).measures:
        raise StateError(f"checkpoint name {saved.checkpoint!r} is taken by trial {row.trial}; choose another")
    reports = [*(report.metrics for report in reader.reports(trial, saved.token)), saved.metrics]
    values = {name: [metrics[name] for metrics in reports if name in metrics] for name in needed}
    missing = [name for name in needed if not values[name]]
    if missing:
        raise UsageError(f"metrics: the objective needs {', '.join(missing)}")
    checkpoint = Checkpoint(
        study=study,
        name=saved.checkpoint,
        trial=trial,
        step=saved.step,
        identity=f"{study}/{saved.checkpoint}",
        weak=True,
        size_bytes=saved.size_bytes,
        created_at=system_clock(),
    )
    return Completion(
        trial=trial,
        token=saved.token,
        reached_step=saved.step,
        values=values,
        metrics=saved.metrics,
        checkpoint=checkpoint,
    )


def _difference(trial: TrialRecord, saved: Saved) -> str | None:
    """Return what a trial was submitted with before, if this submission differs."""
    stored = {name: trial.metrics.get(name) for name in saved.metrics}
    if any(math.isfinite(value) and stored[name] != value for name, value in saved.metrics.items()):
        return f"{stored}"
    # A measurement keeps the checkpoint that it measures.
    return None if trial.measures or trial.checkpoint == saved.checkpoint else f"checkpoint {trial.checkpoint!r}"


def _view(kind: type[View], trial: TrialRecord, **more: Any) -> View:
    """Return a model of a trial; its fields have the names of the record's."""
    names = {*kind.model_fields} - {"trial", *more}
    return kind(trial=trial.id, **{name: getattr(trial, name) for name in names}, **more)
