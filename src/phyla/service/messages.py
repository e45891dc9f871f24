"""What black-box clients and the service send each other."""

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
