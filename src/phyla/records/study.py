"""A study: one job, named, durable, resumable."""

from dataclasses import dataclass
from enum import StrEnum
from typing import final

from phyla.records.json import Json, JsonObject


class StudyState(StrEnum):
    """Where a study is in its life."""

    RUNNING = "running"
    STOPPED = "stopped"
    COMPLETED = "completed"
    FAILED = "failed"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRecord:
    """One study.

    Attributes:
        id: key in its store.
        name: unique in its store.
        state: running, stopped by a person, completed, or failed (it stopped itself).
        config: space, objective, strategy and options as JSON; `schema` is its version.
        seed: root of all randomness of the study.
        population_size: number of members, those that were retired included.
        created_at: seconds since the epoch.
        strategy_state: JSON that the strategy committed with its last decision that carried one.
        state_version: number of times `strategy_state` was written.
        message: why the study stopped or failed, and what to do.
        resumed_at: when it was last let go on after it was stopped or failed; None: never.
    """

    id: int
    name: str
    state: StudyState
    config: JsonObject
    seed: int
    population_size: int
    created_at: float
    strategy_state: Json = None
    state_version: int = 0
    message: str | None = None
    resumed_at: float | None = None
