"""Watches the checkpoints that another study commits."""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import final

from phyla.checkpoints import RemotePlace
from phyla.controller import Sightings
from phyla.records import (
    Checkpoint,
    CheckpointKind,
    CheckpointState,
    JobKind,
    JobState,
    StudyRecord,
    StudyState,
    TrialRecord,
)
from phyla.store import Reader, Store
from phyla.watcher.snapshots import BestLinks

_FINAL = (JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Produced:
    """A study, the live checkpoints of its completed trials, and the trials after one."""

    study: StudyRecord
    checkpoints: list[Checkpoint]
    trials: list[TrialRecord]


def produced_after(reader: Reader, trial: int) -> Produced:
    """Return what a study has produced since a trial."""
    live = reader.checkpoints(CheckpointState.LIVE)
    return Produced(
        study=reader.study(),
        checkpoints=[row for row in live if row.kind is CheckpointKind.RESULT],
        trials=list(reader.trials(after=trial)),
    )


@final
@dataclass(eq=False)
class StudyWatcher:
    """Looks in the store for checkpoints that a study has committed, and reports them to its `sink`, a run.

    Checkpoints that the study deletes before their evaluation count as gone; it never deletes those whose
    evaluation has started.
    """

    root = None
    wait_s = 1.0
    """Maximum seconds between two looks."""

    sink: Sightings
    store: Store
    study: int
    _: KW_ONLY
    checkpoints: Path | RemotePlace
    best: Path
    once: bool = False

    def __post_init__(self) -> None:
        self._best = BestLinks(self.best, self.sink.note)
        self._seen: dict[tuple[str, int], Checkpoint] = {}
        self._last_id = 0
        self._trials_after = 0
        self._looked = False
        self.ended = False

    def look(self) -> None:
        """Look once and report new checkpoints."""
        if self.ended:
            return
        for seen in self.sink.seen(after=self._last_id):
            self._seen[seen.name, seen.index] = seen
            self._last_id = seen.id
        produced = self.store.look(self.study, produced_after, self._trials_after)
        state = produced.study.state
        live = {row.name: row for row in produced.checkpoints}
        checkpoints, after = self._find_new(produced.trials, live)
        if checkpoints:
            self.sink.observe(checkpoints, first_look=not self._looked)
        self._trials_after = after
        lost = {
            seen.id: f"{seen.name} was deleted by its study before its evaluation"
            for seen in self._seen.values()
            if seen.usable and seen.name not in live
        }
        self.sink.gone(lost)
        self._seen = {key: seen for key, seen in self._seen.items() if seen.id not in lost}
        self._looked = True
        if self.once or state is not StudyState.RUNNING:
            self.sink.drain("all checkpoints were seen" if self.once else f"the study is {state}")
            self.ended = True

    def _find_new(
        self, trials: Sequence[TrialRecord], live: Mapping[str, Checkpoint]
    ) -> tuple[list[Checkpoint], int]:
        """Return new checkpoints, and the trial up to which no more can come."""
        new: list[Checkpoint] = []
        after, all_final = self._trials_after, True
        for trial in trials:
            all_final = all_final and trial.state in _FINAL
            after = trial.id if all_final else after
            row = live.get(trial.checkpoint or "")
            left_it = trial.kind is JobKind.TRAIN and trial.state is JobState.COMPLETED
            index = trial.checkpoint_index
            if row is None or not left_it or (row.name, index) in self._seen:
                continue
            new.append(
                replace(
                    row,
                    id=0,
                    kind=CheckpointKind.SEEN,
                    index=index,
                    step=row.step if trial.reached_step is None else trial.reached_step,
                    identity=row.digest if not index else f"{row.digest}#{index}",
                    trial=trial.id,
                    taken=0,
                )
            )
        return sorted(new, key=lambda checkpoint: checkpoint.written_at), after

    def tend(self) -> None:
        """Update the `best` links; checkpoints on an object store get none."""
        if not isinstance(self.checkpoints, Path):
            return
        root = self.checkpoints
        _, best = self.sink.held()
        self._best.lead_to({name: root / seen.name for name, seen in best.items()})
