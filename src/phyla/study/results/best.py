"""The best trials of a study, and the checkpoints that trials left."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, final

from phyla.checkpoints import RemotePlace, is_there, local_copy
from phyla.errors import CheckpointMissing
from phyla.queries import BestTrial
from phyla.records import Aim, Checkpoint, TrialRecord
from phyla.space import Params

Root: TypeAlias = Callable[[], Path | RemotePlace]
"""Returns where the checkpoints of a study are."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class BestCheckpoint:
    """The checkpoint of the best trial."""

    name: str
    location: Path | RemotePlace | None  # where it is; None of one that a black-box client keeps
    step: int  # age of the weights
    digest: str  # identity of its content
    size_bytes: int  # bytes of its files together
    index: int  # place within it, when it holds several models

    @property
    def path(self) -> Path:
        """Its directory, which is read-only; of one on an object store a verified copy, downloaded if need be."""
        if self.location is None:
            raise CheckpointMissing(f"checkpoint {self.name!r}: only the client that made it has its files")
        return local_copy(self.location, self.digest)

    @property
    def where(self) -> str:
        """Its directory or URL as text; the client's name for a checkpoint that a black-box client keeps."""
        return str(self.location or self.name)

    @property
    def gone(self) -> bool:
        """Whether nothing is there; of an object store that is out of reach it is not known."""
        return self.location is None or not is_there(self.location)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """The best trial of a study."""

    fitness: float
    checkpoint: BestCheckpoint
    params: Params  # the trial's hyperparameters; the whole path there is in `Results.schedule()`
    metrics: Mapping[str, Any]  # last reported value of each metric
    trial: int
    member: int
    values: Mapping[str, float]  # what it was judged by: the metrics that the objective names

    def __repr__(self) -> str:
        where = f"trial {self.trial} of member {self.member}, step {self.checkpoint.step}"
        return f"<Best: fitness {self.fitness:g}, {where}, in {self.checkpoint.where}>"


def front_of(study: str, aim: Aim, best: Sequence[BestTrial], root: Root) -> list[Best]:
    """Return the trials on the Pareto front whose checkpoints are kept; without trade-offs the best one."""
    return [
        Best(
            fitness=trial.fitness,
            checkpoint=checkpoint_of(study, trial, row, root),
            params=Params.of_flat(dict(trial.params)),
            metrics=trial.metrics,
            trial=trial.id,
            member=trial.member,
            values={aim.name: trial.fitness} if trial.criteria is None else trial.criteria.values,
        )
        for trial, row in ((best_trial.trial, best_trial.checkpoint) for best_trial in best)
        if trial.fitness is not None and row is not None
    ]


def checkpoint_of(study: str, trial: TrialRecord, row: Checkpoint | None, root: Root) -> BestCheckpoint:
    """Return the checkpoint that a trial left; raise CheckpointMissing if there is none."""
    if row is None:
        none = f"is {trial.state}, and left none"
        why = none if trial.checkpoint is None else "left a checkpoint that was collected since"
        raise CheckpointMissing(f"study {study!r} has no checkpoint of trial {trial.id}: it {why}")
    return BestCheckpoint(
        name=row.name,
        location=None if row.weak else root() / row.name,
        step=row.step,
        digest=row.digest,
        size_bytes=row.size_bytes,
        index=trial.checkpoint_index,
    )
