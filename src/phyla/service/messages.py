"""The messages between black-box clients and the service."""

from typing import Annotated, Any

from fastapi import Path
from pydantic import BaseModel, ConfigDict, Field

from phyla.service.changes import MOST_WAIT_S

BIG = 2**63
Name = Annotated[str, Path(max_length=100, pattern=r"^\w[\w.-]{0,99}$", description="Name of the study.")]
Id = Annotated[int, Path(ge=0, lt=BIG, description="Id of the trial.")]
Token = Annotated[int, Field(ge=0, lt=BIG)]
Step = Annotated[int, Field(ge=0, lt=BIG)]
Text = Annotated[str, Field(max_length=10_000)]
Metrics = dict[Annotated[str, Field(max_length=200)], float]


class Model(BaseModel):
    """A message; unknown keys are rejected."""

    model_config = ConfigDict(extra="forbid", ser_json_inf_nan="strings", use_attribute_docstrings=True)


class StudyTable(BaseModel):
    """A study, as in a study file without its command: `name`, `space`, `objective`, a strategy such as `pbt`."""

    model_config = ConfigDict(extra="allow", use_attribute_docstrings=True)
    name: str
    """The name of the study, unique in the service."""
    space: dict[str, Any]
    """The hyperparameters by name, each with its type and bounds, as in `[space]`."""
    objective: Any
    """What to select for, such as `maximize score`, or a table as in `[objective]`."""


class StudyView(Model):
    """The state of a study."""

    name: str
    """The name of the study."""
    state: str
    """`running`, `stopped`, `completed`, `failed` or another state of a study."""
    message: str | None
    """The reason of this state, if there is one."""
    population_size: int
    """The number of members."""
    trials: dict[str, int]
    """The number of trials by state."""


class Wanted(Model):
    """A request for trials."""

    worker: Annotated[str, Field(min_length=1, max_length=200)]
    """The name of the worker, unique in the study; leases belong to it."""
    count: Annotated[int, Field(ge=1, le=1000)] = 1
    """The most trials to return."""
    wait_s: Annotated[float, Field(ge=0, le=MOST_WAIT_S)] = 0.0
    """The longest wait for a trial, in seconds."""
    held: list[Id] | None = None
    """The trials that the worker has, `[]` for none. Other trials leased to it are suggested again, because the
    answer with them was lost. Without `held`, they wait until their leases expire."""


class Suggestion(Model):
    """A trial to train, under a lease that `renew` and `report` renew."""

    trial: int
    """Its id."""
    token: int
    """The fencing token of the lease; requests about the trial need it, and a newer token invalidates it."""
    member: int
    """The member of the population that it trains, from 0."""
    parent: int | None
    """The trial whose checkpoint it starts from; null: from scratch."""
    checkpoint: str | None
    """The checkpoint to start from, by the name that its client chose; null: from scratch."""
    params: dict[str, Any]
    """The hyperparameters by name."""
    start_step: int
    """The age of the weights that it starts from, in steps."""
    end_step: int
    """The age of the weights at which to stop training."""
    seed: int
    """The seed of this trial."""
    expires_at: float
    """When the lease expires, in seconds since the epoch."""


class Suggestions(Model):
    """Trials to train; without any, whether the study has ended, and why."""

    suggestions: list[Suggestion]
    """At most `count`."""
    ended: bool
    """Whether the study has ended: there will be no more trials."""
    why: str | None
    """Why there is no suggestion; null if there is one."""


class Leased(Model):
    """A request under a lease."""

    token: Token
    """The token of the suggestion."""


class ReportedStep(Leased):
    """Metrics at a step, an age of the weights."""

    step: Step
    """The age of the weights, from `start_step` to `end_step`; at completion above `start_step`."""
    metrics: Metrics
    """Numbers by name, among them those that the objective needs; also `"NaN"`, `"Infinity"` or `"-Infinity"`."""


class Saved(ReportedStep):
    """The checkpoint and metrics of a completed trial."""

    checkpoint: Annotated[str, Field(min_length=1, max_length=500)]
    """The name of the checkpoint, unique in the study."""
    size_bytes: Annotated[int, Field(ge=0, lt=BIG)] = 0
    """Its size, only for display."""


class Failed(Leased):
    """The failure of an attempt."""

    error: Text
    """The error."""
    retryable: bool = True
    """Whether a retry may succeed."""


class Renewed(Model):
    """A worker that is still alive."""

    worker: Annotated[str, Field(min_length=1, max_length=200)]
    """The name with which it requested its trials."""


class GoOn(Model):
    """Whether to continue; not if the lease is gone or a rule stopped the trial."""

    go_on: bool
    """Whether to continue training."""
    why: str | None = None
    """Why not."""


class Completed(Model):
    """Whether a completion counts, and the fitness."""

    counts: bool
    """Whether it does."""
    fitness: float | None = None
    """The number that selection compares; null if the completion does not count, or if it is not known yet."""
    why: str | None = None
    """Why it does not count."""


class TrialView(Model):
    """One trial."""

    trial: int
    """Its id."""
    member: int
    """The member of the population that it trains, from 0."""
    generation: int
    """The number of trials that the member completed before."""
    state: str
    """`pending`, `running`, `completed`, `failed` or `cancelled`."""
    parent: int | None
    """The trial whose checkpoint it starts from; null: from scratch."""
    params: dict[str, Any]
    """The hyperparameters by name."""
    start_step: int
    """The age of the weights that it starts from, in steps."""
    end_step: int
    """The age of the weights at which it stops."""
    reached_step: int | None
    """The age of the weights in its checkpoint."""
    fitness: float | None
    """The number that selection compares."""
    checkpoint: str | None
    """Its checkpoint, by the name that its client chose."""
    error: str | None
    """The last error."""


class Deleted(Model):
    """Deleted checkpoints."""

    deleted: list[Text] = []
    """The names of deleted checkpoints."""


class Unneeded(Model):
    """Checkpoints to delete now; report the deletion in the next request."""

    checkpoints: list[str]
    """The names of checkpoints that no trial will start from."""
