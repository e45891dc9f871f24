"""A study: named, durable, resumable; and what its members may start from."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from os import PathLike
from pathlib import Path
from typing import Any, final

from phyla.errors import ConfigurationError
from phyla.records.json import Json, JsonObject
from phyla.records.names import FileName
from phyla.validation import check_value


class StudyKind(StrEnum):
    """Where a study's checkpoints come from: its own population, a watched directory, or another study."""

    POPULATION = "population"
    DIRECTORY = "directory"
    STUDY = "study"


class StudyState(StrEnum):
    """Where a study is in its life.

    A draining study gets no more checkpoints, but still evaluates. A user stopped a stopped study; a failed one
    stopped with an error. A study that is being deleted can only be deleted.
    """

    RUNNING = "running"
    DRAINING = "draining"
    STOPPED = "stopped"
    COMPLETED = "completed"
    FAILED = "failed"
    DELETING = "deleting"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRecord:
    """One study.

    Attributes:
        name: unique in its store.
        config: what it was made with, as JSON; `schema` is its version. Of a population space, objective, strategy
            and options; of a watched one the suites and how to follow.
        seed: root of all randomness of the study.
        population_size: number of members, those that were retired included.
        strategy_state: JSON that the strategy committed with its last decision that carried one.
        message: why the study stopped or failed, and what to do.
        resumed_at: when it was last let go on after it was stopped or failed; None: never.
        location: the watched directory; of a population, the name in the marker of its checkpoint directory, empty
            until there is one.
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
    message: str | None = None
    resumed_at: float | None = None
    location: FileName = ""
    source: int | None = None

    @property
    def watched(self) -> bool:
        """Whether its checkpoints come from elsewhere: it has no population."""
        return self.kind is not StudyKind.POPULATION


@final
@dataclass(frozen=True, slots=True)
class StartFrom:
    """A checkpoint to start members from, with what is known about it.

    Args:
        path: directory or file; made absolute.
        step: age of its weights; None takes what a checkpoint of phyla says about itself, and 0 for others.
        params: hyperparameters to start with, flat or nested; those left out are chosen as for a fresh start.
            Leave out those that the strategy sets, as a grid, a schedule or a replay does.
        index: place within it, when it holds several models.
        digest: what the digest of its content must be; None accepts any.

    Raises:
        ConfigurationError: an argument is invalid.
    """

    path: str | PathLike[str]
    step: int | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    index: int = 0
    digest: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.path, str | PathLike) or not str(self.path):
            raise ConfigurationError(f"StartFrom({self.path!r}): must be the path of a directory or file")
        for name, value in (("step", self.step), ("index", self.index)):
            if value is not None or name == "index":
                object.__setattr__(self, name, check_value("StartFrom", name, value, 0))
        if not isinstance(self.params, Mapping):
            raise ConfigurationError(f"StartFrom(params={self.params!r}): must map names to values")
        object.__setattr__(self, "path", str(Path(self.path).expanduser().absolute()))
        object.__setattr__(self, "params", dict(self.params))

    @classmethod
    def of(cls, entry: object) -> "StartFrom":
        """Return an entry of `start_from`: itself, or that of a path.

        Raises:
            ConfigurationError: it is neither.
        """
        if isinstance(entry, cls):
            return entry
        if isinstance(entry, str | PathLike):
            return cls(entry)
        raise ConfigurationError(f"start_from: {entry!r} is neither a path nor a StartFrom(path, ...)")
