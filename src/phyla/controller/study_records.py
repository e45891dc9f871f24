"""What is done to a study without its rules: files, state and configuration, in one transaction each."""

from collections.abc import Sequence
from dataclasses import replace

from phyla.configuration import check_unchanged
from phyla.errors import StateError
from phyla.machine import Insert, MarkDeleting, SetCheckpointState, SetConfig, SetStudyState, Update
from phyla.records import Checkpoint, CheckpointState, JsonObject, MemberState, RunStart, StudyState
from phyla.store import Store
from phyla.store.retry import repeatable
from phyla.system.failpoints import failpoint


class Housekeeping:
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
        """Mark the study as being deleted; `StateError` if somebody works on it, or on one that watches it."""
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
