"""A study: one job, named, durable, resumable."""

from dataclasses import dataclass
from enum import StrEnum
from typing import final

from phyla.records.json import Json, JsonObject


class StudyKind(StrEnum):
    """Where a study's checkpoints come from: its own population, a watched directory, or another study."""

    POPULATION = "population"
    DIRECTORY = "directory"
    STUDY = "study"


class StudyState(StrEnum):
    """Where a study is in its life; one that is draining gets no more checkpoints, but still evaluates."""

    RUNNING = "running"
    DRAINING = "draining"
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
        kind: where its checkpoints come from.
        state: running, draining (a watched one), stopped by a person, completed, or failed (it stopped itself).
        config: what it was made with, as JSON; `schema` is its version. Of a population space, objective, strategy
            and options; of a watched one the suites and how to follow.
        seed: root of all randomness of the study.
        population_size: number of members, those that were retired included.
        created_at: seconds since the epoch.
        strategy_state: JSON that the strategy committed with its last decision that carried one.
        state_version: number of times `strategy_state` was written.
        message: why the study stopped or failed, and what to do.
        resumed_at: when it was last let go on after it was stopped or failed; None: never.
        location: the watched directory; empty for any other kind.
        source: id of the study whose checkpoints it watches; None for any other kind.
    """

    id: int
    name: str
    kind: StudyKind = StudyKind.POPULATION
    state: StudyState
    config: JsonObject
    seed: int
    population_size: int
    created_at: float
    strategy_state: Json = None
    state_version: int = 0
    message: str | None = None
    resumed_at: float | None = None
    location: str = ""
    source: int | None = None

    @property
    def watched(self) -> bool:
        """Whether its checkpoints come from elsewhere: it has no population."""
        return self.kind is not StudyKind.POPULATION
