"""Changes of a study that need no rules: files, state and configuration, in one transaction each."""

from collections.abc import Sequence
from dataclasses import replace
from typing import final

from phyla import machine
from phyla.configuration import check_unchanged
from phyla.errors import StateError
from phyla.machine import (
    Imported,
    Insert,
    MarkDeleting,
    SetCheckpointState,
    SetConfig,
    SetLocation,
    SetStudyState,
    Update,
)
from phyla.records import Checkpoint, CheckpointState, FileName, JsonObject, MemberState, RunStart, StudyState
from phyla.store import Store
from phyla.store.retry import repeatable
from phyla.system.failpoints import failpoint


@final
class StudyRecords:
    """Keeps the records of one study; every call is one transaction, and may raise `StoreError`."""

    def __init__(self, store: Store, study: int) -> None:
        self._store = store
        self._study = study

    @repeatable
    def mark_deleting(self, candidates: Sequence[Checkpoint]) -> list[str]:
        """Mark checkpoints for deletion, except those that a trial took since; return the marked names."""
        if not candidates:
            return []
        with self._store.transaction(self._study, exclusive=True) as tx:
            marked = tx.apply([MarkDeleting(row.name, row.taken) for row in candidates])
        failpoint("gc.after_mark")
        return marked

    @repeatable
    def set_checkpoints(self, names: Sequence[str], state: CheckpointState) -> None:
        """Set the state of checkpoints whose bytes were deleted, or found missing."""
        if names:
            with self._store.transaction(self._study, exclusive=True) as tx:
                tx.apply([SetCheckpointState(name, state) for name in names])

    @repeatable
    def set_unusable(self, name: str, damage: str | None) -> None:
        """Mark a checkpoint as lost or damaged, so that it cannot be a donor, a parent or the best."""
        with self._store.transaction(self._study, exclusive=True) as tx:
            tx.apply(machine.set_unusable(tx, name, damage))

    @repeatable
    def import_checkpoints(self, imports: Sequence[Imported]) -> bool:
        """Make every member start from an imported checkpoint, all at once.

        Returns:
            Whether it did; False if another process was first.
        """
        with self._store.transaction(self._study, exclusive=True) as tx:
            if not machine.awaits_imports(tx):
                return False
            for index in range(tx.study().population_size):
                tx.apply(machine.import_start(tx, index, imports))
            failpoint("import.before_commit")
        failpoint("import.after_commit")
        return True

    def note_start(self, start: RunStart) -> None:
        """Record how the study was started."""
        with self._store.transaction(self._study, exclusive=False) as tx:
            tx.apply([Insert(start)])

    def store_config(self, config: JsonObject, before: JsonObject) -> None:
        """Store a configuration that leads to the same decisions; `StudyChanged` if it was changed in between.

        A watched study that had ended runs again.
        """
        with self._store.transaction(self._study, exclusive=True, alone=True) as tx:
            if tx.study().config != config:  # else this is a retry after a lost answer
                check_unchanged(tx.study(), before)
                done = [member.index for member in tx.members() if member.state is MemberState.DONE]
                tx.apply([SetConfig(config)])
                if tx.study().state is StudyState.COMPLETED:
                    # A new configuration makes members ready, but these have finished.
                    members = map(tx.locked_member, done)
                    tx.apply([Update(replace(member, state=MemberState.DONE)) for member in members])
                    tx.apply(machine.begin_final(tx, before))
            if tx.study().watched:
                tx.apply([SetStudyState(StudyState.RUNNING)])

    @repeatable
    def fail_study(self, message: str) -> None:
        """Mark the study as failed: it hands out no more work."""
        self._store.set_state(self._study, StudyState.FAILED, message)

    @repeatable
    def set_directory(self, directory: FileName, before: FileName) -> FileName:
        """Make a directory that of the study's checkpoints, unless another process has replaced the one `before`.

        Returns:
            The name of the directory that is the study's now.
        """
        with self._store.transaction(self._study, exclusive=True) as tx:
            if tx.study().location == before and not tx.study().watched:
                tx.apply([SetLocation(directory)])
            return tx.study().location

    def begin_deleting(self) -> None:
        """Mark the study as being deleted; `StateError` if a worker has a job of it, or of its watchers."""
        watching = [study.id for study in self._store.studies() if study.source == self._study]
        for study in (*watching, self._study):
            with self._store.transaction(study, exclusive=True, alone=True) as tx:
                held = [attempt for attempt in tx.running() if attempt.expires_at > tx.now()]
                if held:
                    workers = sorted({attempt.worker for attempt in held})
                    count = "a worker is" if len(workers) == 1 else f"{len(workers)} workers are"
                    left_s = max(attempt.expires_at for attempt in held) - tx.now()
                    name = tx.study().name
                    raise StateError(
                        f"study {name!r} was not deleted: {count} training or evaluating it "
                        f"({', '.join(workers[:3])}). Stop them first; the lease of a dead worker expires in "
                        f"at most {left_s:.0f} s"
                    )
                if study == self._study:
                    tx.apply([SetStudyState(StudyState.DELETING)])
