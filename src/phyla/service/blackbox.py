"""The black-box form (Li et al. 2019, section 3): code in any language gets suggestions and says how they did.

The client names the checkpoints, keeps their bytes, and deletes them once it learns that nobody needs them.
"""

import math
import time
from pathlib import Path as FilePath
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from phyla.configuration import to_config
from phyla.controller import Controller
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
from phyla.service.changes import MOST_WAIT_S, News
from phyla.service.studies import Studies
from phyla.settings import system_clock
from phyla.store import Reader, Store
from phyla.study.files.tables import Where
from phyla.study.files.toml import study_of

BIG = 2**63
Name = Annotated[str, Path(max_length=100, pattern=r"^\w[\w.-]{0,99}$", description="Name of the study.")]
Id = Annotated[int, Path(ge=0, lt=BIG, description="Id of the trial.")]
Token = Annotated[int, Field(ge=0, lt=BIG)]
Step = Annotated[int, Field(ge=0, lt=BIG)]
Text = Annotated[str, Field(max_length=10_000)]
View = TypeVar("View", bound=BaseModel)
Metrics = dict[Annotated[str, Field(max_length=200)], float]


class Model(BaseModel):
    """What a request has; an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", ser_json_inf_nan="strings", use_attribute_docstrings=True)


class StudyTable(BaseModel):
    """A study, as in a study file without its command: `name`, `space`, `objective`, a strategy such as `pbt`."""

    model_config = ConfigDict(extra="allow", use_attribute_docstrings=True)
    name: str
    """Of the study, unique in the service."""
    space: dict[str, Any]
    """The hyperparameters by name, each with its type and bounds, as in `[space]`."""
    objective: Any
    """What to select for, such as `maximize score`, or a table as in `[objective]`."""


class StudyView(Model):
    """How a study stands."""

    name: str
    """Of the study."""
    state: str
    """`running`, `stopped`, `completed`, `failed` or another state of a study."""
    message: str | None
    """Why it is in this state, where there is something to say."""
    population_size: int
    """How many members it has."""
    trials: dict[str, int]
    """How many trials are in which state."""


class Wanted(Model):
    """A worker, and how many trials it wants."""

    worker: Annotated[str, Field(min_length=1, max_length=200)]
    """Unique among those that work on the study; leases go by it."""
    count: Annotated[int, Field(ge=1, le=1000)] = 1
    """How many trials it wants at most."""
    wait_s: Annotated[float, Field(ge=0, le=MOST_WAIT_S)] = 0.0
    """How many seconds to wait at most until there is one."""
    held: list[Id] | None = None
    """The trials that the worker has, `[]` for none. Others that are leased to it are suggested again: it never
    got the answer that named them. Without `held`, they wait until their leases end."""


class Suggestion(Model):
    """A trial to train; under a lease, which `renew` and `report` keep."""

    trial: int
    """Its id."""
    token: int
    """Of the lease: requests about the trial give it, and a newer one replaces it."""
    member: int
    """The member of the population that it trains, from 0."""
    parent: int | None
    """The trial whose checkpoint it starts from; null: from scratch."""
    checkpoint: str | None
    """Whose weights to start from, by the name that the client gave it; null: from scratch."""
    params: dict[str, Any]
    """The hyperparameters by name."""
    start_step: int
    """The age of the weights that it starts from, in steps."""
    end_step: int
    """The age of the weights up to which to train."""
    seed: int
    """For the random numbers of this trial."""
    expires_at: float
    """When the lease ends, in seconds since the epoch."""


class Suggestions(Model):
    """Trials to train; when there is none, whether there will be more, and why."""

    suggestions: list[Suggestion]
    """At most `count`."""
    ended: bool
    """Whether the study has ended, so that there are no more."""
    why: str | None
    """Why there is no suggestion; null where there is one."""


class Leased(Model):
    """Under which lease the request is made."""

    token: Token
    """The one of the suggestion."""


class ReportedStep(Leased):
    """Metrics at a step, an age of the weights."""

    step: Step
    """The age of the weights, from `start_step` to `end_step`; at completion above `start_step`."""
    metrics: Metrics
    """Numbers by name, among them those that the objective needs; also `"NaN"`, `"Infinity"` or `"-Infinity"`."""


class Saved(ReportedStep):
    """What training left."""

    checkpoint: Annotated[str, Field(min_length=1, max_length=500)]
    """A name that no other trial of the study gave."""
    size_bytes: Annotated[int, Field(ge=0, lt=BIG)] = 0
    """How large it is, only to be shown."""


class Failed(Leased):
    """Why an attempt failed."""

    error: Text
    """What went wrong."""
    retryable: bool = True
    """Whether it may be tried again."""


class Renewed(Model):
    """Who is still at work."""

    worker: Annotated[str, Field(min_length=1, max_length=200)]
    """The name under which it got its trials."""


class GoOn(Model):
    """Whether to go on: not when the lease is gone, or a rule stopped the trial."""

    go_on: bool
    """Whether to go on training."""
    why: str | None = None
    """Why not."""


class Completed(Model):
    """Whether a completion counts, and the fitness."""

    counts: bool
    """Whether it does."""
    fitness: float | None = None
    """What selection compares; null where it does not count, or is not known yet."""
    why: str | None = None
    """Why it does not count."""


class TrialView(Model):
    """One trial."""

    trial: int
    """Its id."""
    member: int
    """The member of the population that it trains, from 0."""
    generation: int
    """How many trials the member completed before."""
    state: str
    """`pending`, `running`, `completed`, `failed` or `cancelled`."""
    parent: int | None
    """The trial whose checkpoint it starts from; null: from scratch."""
    params: dict[str, Any]
    """The hyperparameters by name."""
    start_step: int
    """The age of the weights that it starts from, in steps."""
    end_step: int
    """The age of the weights up to which it is to train."""
    reached_step: int | None
    """The age of the weights that it left."""
    fitness: float | None
    """What selection compares."""
    checkpoint: str | None
    """What it left, by the name that the client gave it."""
    error: str | None
    """Why it failed last."""


class Deleted(Model):
    """What the client has deleted."""

    deleted: list[Text] = []
    """Checkpoints that are gone."""


class Unneeded(Model):
    """What to delete now; say so the next time."""

    checkpoints: list[str]
    """Those that no trial will start from any more, by the names that clients gave them."""


def black_box(studies: Studies, doors: Doors, news: News) -> APIRouter:
    """Return the routes."""
    router = APIRouter(prefix="/v1/studies", tags=["black box"])
    viewer, worker, operator = (may(doors, role) for role in Role)
    store = studies.store

    def found(name: str) -> StudyRecord:
        record = store.find_study(name)
        if record is None or record.kind is not StudyKind.POPULATION:
            raise StudyNotFound(f"there is no study {name!r}")
        return record

    def controller(name: str) -> Controller:
        return studies.controller(found(name).id)

    def view(record: StudyRecord) -> StudyView:
        with store.reader(record.id) as reader:
            counts = reader.counts()
        its = {name: getattr(record, name) for name in ("name", "state", "message", "population_size")}
        return StudyView(**its, trials=counts)

    def trained(name: str, trial: int) -> StudyRecord:
        """Return the study of a trial."""
        record = found(name)
        with store.reader(record.id) as reader:
            _known(reader, trial)
        return record

    def ended(record: StudyRecord, trial: int, token: int, meant: AttemptState) -> GoOn:
        """Say what became of an attempt that was to end in a certain way."""
        with store.reader(record.id) as reader:
            attempt = reader.attempt(trial, token)
        why = None if attempt is None or attempt.state is meant else f"it does not count: it is {attempt.state}"
        return GoOn(go_on=False, why=why)

    @router.get("", dependencies=[viewer])
    def list_studies() -> list[StudyView]:
        """List the studies."""
        return [view(record) for record in store.studies() if record.kind is StudyKind.POPULATION]

    @router.post("", dependencies=[operator])
    def create_study(table: StudyTable) -> StudyView:
        """Create a study, or find the one that exists under this name with the same settings."""
        study = study_of(table.model_dump(), Where(FilePath("request"), imports=False), runs=False)
        config = to_config(study.rules, study.seed)
        members = study.rules.strategy.population_size
        return view(studies.create(study.name, config, study.seed, members))

    @router.get("/{name}", dependencies=[viewer])
    def look(name: Name) -> StudyView:
        """Say how a study stands."""
        return view(found(name))

    @router.get("/{name}/trials", dependencies=[viewer])
    def list_trials(
        name: Name,
        after: Annotated[int, Query(ge=0, lt=BIG, description="The id above which to begin.")] = 0,
        limit: Annotated[int, Query(ge=1, le=1000, description="How many at most.")] = 100,
    ) -> list[TrialView]:
        """List trials by id, from the first one whose id is above `after`."""
        with store.reader(found(name).id) as reader:
            return [_view(TrialView, trial) for trial in reader.trials(after=after, limit=limit)]

    @router.post("/{name}/suggestions", dependencies=[worker])
    async def suggest(name: Name, wanted: Wanted) -> Suggestions:
        """Get trials to train."""
        ends_at = time.monotonic() + wanted.wait_s
        while True:
            change = news.change
            answer, wait_s = await run_in_threadpool(_suggested, controller, name, wanted)
            left_s = min(ends_at - time.monotonic(), math.inf if wait_s is None else wait_s)
            if answer.suggestions or answer.ended or left_s <= 0:
                return answer
            await news.after(change, left_s)

    @router.post("/{name}/trials/{trial}/report", dependencies=[worker])
    def report(name: Name, trial: Id, reported: ReportedStep) -> GoOn:
        """Report metrics, and learn whether to go on; keeps the lease.

        The same step and metrics again, as after an answer that was lost, count once.
        """
        record, asked = found(name), controller(name)
        with store.reader(record.id) as reader:
            _check_step(reader, trial, reported.step)
        standing = asked.report(trial, reported.token, [Report(reported.step, reported.metrics)])
        if standing.stop_reason is not None:
            return GoOn(go_on=False, why=f"a rule stopped it: {standing.stop_reason}")
        if standing.cancelled:
            return GoOn(go_on=False, why="the lease is gone: another worker has the trial, or it was cancelled")
        with store.reader(record.id) as reader:
            attempt = reader.attempt(trial, reported.token)
        if attempt is not None:
            asked.renew(attempt.worker)
        return GoOn(go_on=True)

    @router.post("/{name}/renew", dependencies=[worker])
    def renew(name: Name, renewed: Renewed) -> GoOn:
        """Keep all leases of a worker."""
        controller(name).renew(renewed.worker)
        return GoOn(go_on=True)

    @router.post("/{name}/trials/{trial}/complete", dependencies=[worker])
    def complete(name: Name, trial: Id, saved: Saved) -> Completed:
        """Hand in what a trial left, with its last metrics. Asked again, the answer is the same.

        What comes again under another name, or with other metrics, does not count; the answer says what does.
        """
        record, asked = found(name), controller(name)
        rules = asked.rules
        assert isinstance(rules, TrainRules)
        with store.reader(record.id) as reader:
            row = reader.checkpoint(saved.checkpoint)
            earlier = reader.reports(trial, saved.token)
            _check_step(reader, trial, saved.step, least=1)
        if row is not None and row.trial != trial:
            raise StateError(f"checkpoint {saved.checkpoint!r} is that of trial {row.trial}; choose another name")
        told = [*(one.metrics for one in earlier), saved.metrics]
        values = {goal: [one[goal] for one in told if goal in one] for goal in rules.reported_metrics}
        missing = [goal for goal, seen in values.items() if not seen]
        if missing:
            raise UsageError(f"metrics: {', '.join(missing)} is missing, which the objective needs")
        checkpoint = Checkpoint(
            study=record.id,
            name=saved.checkpoint,
            trial=trial,
            step=saved.step,
            identity=f"{record.id}/{saved.checkpoint}",
            weak=True,
            size_bytes=saved.size_bytes,
            created_at=system_clock(),
        )
        completion = Completion(
            trial=trial,
            token=saved.token,
            reached_step=saved.step,
            values=values,
            metrics=saved.metrics,
            checkpoint=checkpoint,
        )
        (answer,), _, _ = asked.complete([completion])
        if isinstance(answer, Accepted):
            with store.reader(record.id) as reader:
                counted = reader.trial(trial)
            kept = {name: counted.metrics.get(name) for name in saved.metrics}
            other = [name for name, value in saved.metrics.items() if math.isfinite(value) and kept[name] != value]
            if other or counted.checkpoint != saved.checkpoint:
                what = kept if other else f"checkpoint {counted.checkpoint!r}"
                return Completed(counts=False, why=f"it was handed in before, with {what}")
            return Completed(counts=True, fitness=answer.fitness)
        if isinstance(answer, Stopped):
            return Completed(counts=False, why=f"a rule stopped it: {answer.reason}")
        raise answer

    @router.post("/{name}/trials/{trial}/fail", dependencies=[worker])
    def fail(name: Name, trial: Id, failed: Failed) -> GoOn:
        """Say that an attempt failed."""
        record = trained(name, trial)
        failure = Failure(job=trial, token=failed.token, error=failed.error, retryable=failed.retryable)
        controller(name).fail(failure)
        return ended(record, trial, failed.token, AttemptState.FAILED)

    @router.post("/{name}/trials/{trial}/release", dependencies=[worker])
    def release(name: Name, trial: Id, leased: Leased) -> GoOn:
        """Return a trial to the queue; this does not count as a failure."""
        record = trained(name, trial)
        controller(name).release(trial, leased.token)
        return ended(record, trial, leased.token, AttemptState.RELEASED)

    @router.post("/{name}/collect", dependencies=[worker])
    def collect(name: Name, done: Deleted) -> Unneeded:
        """Learn which checkpoints nobody needs any more; they are named until they are said to be deleted."""
        asked = controller(name)
        named = _unneeded(store, found(name).id)
        asked.set_checkpoints([one for one in named if one in {*done.deleted}], CheckpointState.DELETED)
        asked.mark_deleting([row for row in asked.retention().collectable if row.weak])
        return Unneeded(checkpoints=_unneeded(store, found(name).id))

    return router


def _known(reader: Reader, trial: int) -> TrialRecord:
    """Return the trial of an id; 404 if there is none."""
    for known in reader.trials(after=trial - 1, limit=1):
        if known.id == trial:
            return known
    raise HTTPException(404, f"study {reader.study().name!r} has no trial {trial}")


def _check_step(reader: Reader, trial: int, step: int, *, least: int = 0) -> None:
    """Refuse a step that is not one of a trial's."""
    known = _known(reader, trial)
    if not min(known.start_step + least, known.end_step) <= step <= known.end_step:
        raise UsageError(f"step {step}: trial {trial} goes on from {known.start_step} to {known.end_step}")


def _suggested(controller: Any, name: str, wanted: Wanted) -> tuple[Suggestions, float | None]:
    """Claim trials; return them, and how long to wait at most before the next try."""
    held = None if wanted.held is None else frozenset(wanted.held)
    _, work, rest = controller(name).complete((), wanted.worker, wanted.count, held=held)
    made = [
        _view(Suggestion, one.trial, checkpoint=one.trial.parent_checkpoint, expires_at=one.expires_at)
        for one in work
        if isinstance(one, Claimed)
    ]
    if made or not isinstance(rest, Idle):
        why = getattr(rest, "message", None) or (f"the study is {rest.state}" if isinstance(rest, Ended) else None)
        return Suggestions(suggestions=made, ended=isinstance(rest, Ended), why=why), None
    return Suggestions(suggestions=[], ended=False, why=rest.why), rest.seconds


def _unneeded(store: Store, study: int) -> list[str]:
    """Return the checkpoints of black-box clients that no trial starts from any more."""
    with store.reader(study) as reader:
        return [row.name for row in reader.checkpoints(CheckpointState.DELETING) if row.weak]


def _view(kind: type[View], trial: TrialRecord, **more: Any) -> View:
    """Return what a model shows of a trial; its fields are called as those of the record."""
    names = {*kind.model_fields} - {"trial", *more}
    return kind(trial=trial.id, **{name: getattr(trial, name) for name in names}, **more)
