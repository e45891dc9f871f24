"""What is done to a study without its rules: files, state and configuration, in one transaction each."""

from collections.abc import Sequence
from dataclasses import replace
from typing import final

from phyla import machine
from phyla.configuration import check_unchanged
from phyla.errors import StateError
from phyla.machine import Imported, Insert, MarkDeleting, SetCheckpointState, SetConfig, SetStudyState, Update
from phyla.records import Checkpoint, CheckpointState, JsonObject, MemberState, RunStart, StudyState
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
        """Mark checkpoints for deletion, except those a trial took since they were looked at; return which."""
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
        """Mark a checkpoint as lost or damaged, so that it is no donor, no parent and not the best any more."""
        with self._store.transaction(self._study, exclusive=True) as tx:
            tx.apply(machine.set_unusable(tx, name, damage))

    @repeatable
    def import_checkpoints(self, imports: Sequence[Imported]) -> bool:
        """Let every member start from a checkpoint that was brought here; all at once.

        Returns:
            Whether they do; False if another process was quicker.
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
        """Remember how the study was started."""
        with self._store.transaction(self._study, exclusive=False) as tx:
            tx.apply([Insert(start)])

    def store_config(self, config: JsonObject, before: JsonObject) -> None:
        """Store a configuration that decides nothing differently; `StudyChanged` if it was changed meanwhile.

        A watched study that had ended runs again.
        """
        with self._store.transaction(self._study, exclusive=True, alone=True) as tx:
            if tx.study().config != config:  # else the answer was lost, and it is asked again
                check_unchanged(tx.study(), before)
                done = [member.index for member in tx.members() if member.state is MemberState.DONE]
                tx.apply([SetConfig(config)])
                if tx.study().state is StudyState.COMPLETED:
                    # A configuration wakes members, and these have nothing to do.
                    members = map(tx.locked_member, done)
                    tx.apply([Update(replace(one, state=MemberState.DONE)) for one in members])
            if tx.study().watched:
                tx.apply([SetStudyState(StudyState.RUNNING)])

    @repeatable
    def fail_study(self, message: str) -> None:
        """Stop the study, which has failed: no more work of it is given out."""
        self._store.set_state(self._study, StudyState.FAILED, message)

    def begin_deleting(self) -> None:
        """Mark the study as being deleted; `StateError` if a worker is on it, or on one that watches it."""
        watching = [each.id for each in self._store.studies() if each.source == self._study]
        for each in (*watching, self._study):
            with self._store.transaction(each, exclusive=True, alone=True) as tx:
                held = [one for one in tx.running() if one.expires_at > tx.now()]
                if held:
                    workers = sorted({one.worker for one in held})
                    count = "a worker is" if len(workers) == 1 else f"{len(workers)} workers are"
                    left_s = max(one.expires_at for one in held) - tx.now()
                    name = tx.study().name
                    raise StateError(
                        f"study {name!r} was not deleted: {count} training or evaluating it "
                        f"({', '.join(workers[:3])}). Stop them first; a worker that died holds its lease for "
                        f"{left_s:.0f} s more"
                    )
                if each == self._study:
                    tx.apply([SetStudyState(StudyState.DELETING)])
