"""A transaction on a study in memory: what can be asked, and how commands are applied."""

import heapq
from collections.abc import Sequence
from operator import attrgetter
from typing import Self, cast, final

from phyla.machine import AnyCommand, EvalCommand
from phyla.records import (
    Attempt,
    Checkpoint,
    CheckpointState,
    Member,
    Report,
    StudyRecord,
    TrialKind,
    TrialRecord,
    TrialState,
)
from phyla.store.memory_evaluation import MemoryEvaluation
from phyla.store.memory_tables import NEVER, UNFINISHED, Memory
from phyla.store.memory_writing import WAYS
from phyla.store.table import Changes


@final
class MemoryTransaction:
    """One transaction on a study; changes are made at once and undone when the block raises.

    Args:
        memory: what the store keeps.
        study: the study.
    """

    def __init__(self, memory: Memory, study: int) -> None:
        self._memory = memory
        self._id = study
        self.tables = memory.tables[study]
        self._now = memory.clock()
        self.changes = Changes()

    def __enter__(self) -> Self:
        self._memory.lock.acquire()
        self._now = self._memory.clock()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if kind is not None:
            self.undo()
        self._memory.lock.release()

    # What can be read

    @property
    def size(self) -> int:
        """Number of members."""
        return len(self.tables.members)

    def now(self) -> float:
        """Return the time, one value throughout the transaction."""
        return self._now

    def study(self) -> StudyRecord:
        """Return the study."""
        return self._memory.studies[self._id]

    def new_trial_id(self) -> int:
        """Return an id that no other trial has or gets."""
        self._memory.next_trial += 1
        return self._memory.next_trial - 1

    def member(self, index: int) -> Member:
        """Return a member."""
        return self.tables.members[index]

    locked_member = member

    def members(self) -> Sequence[Member]:
        """Return all members by index."""
        return list(self.tables.members.values())

    def locked_ready(self, seen: Member) -> Member | None:
        """Return a ready member that has not changed since it was seen, else None."""
        member = self.tables.members[seen.index]
        return member if member == seen else None

    def next_pending(self) -> TrialRecord | None:
        """Return the pending trial with the lowest id."""
        pending = self.tables.by_state.of(TrialState.PENDING)
        return self.tables.trials[min(pending)] if pending else None

    def trial(self, trial_id: int) -> TrialRecord:
        """Return a trial."""
        return self.tables.trials[trial_id]

    def locked_trial(self, trial_id: int) -> TrialRecord | None:
        """Return a trial, or None."""
        return self.tables.trials.get(trial_id)

    def trials(
        self, *, member: int | None = None, after: int = 0, limit: int | None = None
    ) -> Sequence[TrialRecord]:
        """Return trials by id, from the first one whose id is above `after`."""
        chosen = [
            trial
            for key, trial in sorted(self.tables.trials.items())
            if key > after and (member is None or trial.member == member)
        ]
        return chosen[:limit]

    def counts(self) -> dict[str, int]:
        """Return how many trials of kind train are in each state."""
        counts: dict[str, int] = {}
        for trial in self.tables.trials.values():
            if trial.kind is TrialKind.TRAIN:
                counts[trial.state.value] = counts.get(trial.state.value, 0) + 1
        return counts

    def last_completed(self, count: int) -> Sequence[TrialRecord]:
        """Return the training trials that completed last, newest first."""
        done = [t for t in self.tables.trials.values() if _is_result(t)]
        return sorted(done, key=lambda t: (t.ended_at or 0.0, t.id), reverse=True)[:count]

    def ended(self, step: int | None) -> Sequence[TrialRecord]:
        """Return the training trials that came to an age, broke, or were stopped by a rule, as they ended."""
        done = [t for t in self.tables.trials.values() if _came_to(t, step)]
        return sorted(done, key=lambda t: (t.ended_at or 0.0, t.id))

    def unfinished(self) -> Sequence[TrialRecord]:
        """Return the trials that are running or queued for a retry, by id."""
        found = [*self.tables.by_state.of(TrialState.RUNNING), *self.tables.by_state.of(TrialState.PENDING)]
        return [self.tables.trials[key] for key in sorted(found)]

    def results(self, generation: int) -> Sequence[TrialRecord]:
        """Return the completed training trials of a generation that have a fitness, by id."""
        return [self.tables.trials[key] for key in sorted(self.tables.scored.of(generation))]

    def attempt(self, trial_id: int, token: int) -> Attempt | None:
        """Return one attempt."""
        return self.tables.attempts.get((trial_id, token))

    def attempts(self, trial_id: int) -> Sequence[Attempt]:
        """Return the attempts of a trial, oldest first."""
        trial = self.tables.trials.get(trial_id)
        # Tokens count up from 1.
        keys = [(trial_id, token) for token in range(1, trial.token + 1)] if trial else []
        return [self.tables.attempts[key] for key in keys if key in self.tables.attempts]

    def all_attempts(self) -> Sequence[Attempt]:
        """Return all attempts by (trial, token)."""
        return [attempt for _, attempt in sorted(self.tables.attempts.items())]

    def running(self, worker: str | None = None) -> Sequence[Attempt]:
        """Return the running attempts of one worker, or all of them."""
        keys = (
            [key for _, key in self.tables.expiry.since(NEVER)]
            if worker is None
            else self.tables.running.of(worker)
        )
        return [self.tables.attempts[key] for key in sorted(keys)]

    def expired(self, limit: int) -> Sequence[Attempt]:
        """Return running attempts whose lease ran out, longest first."""
        late = min(limit, self.tables.expiry.before(self._now))
        return [self.tables.attempts[self.tables.expiry[place][1]] for place in range(late)]

    def claimed_ahead(self, expires_after: float) -> Sequence[Attempt]:
        """Return running attempts that were claimed after `now()`, and whose lease lasts beyond a time."""
        lasting = [self.tables.attempts[key] for _, key in self.tables.expiry.since(expires_after)]
        return [row for row in lasting if row.expires_at > expires_after and row.claimed_at > self._now]

    def checkpoint(self, name: str) -> Checkpoint | None:
        """Return a checkpoint's row."""
        return self.tables.checkpoints.get(name)

    def checkpoints(self) -> Sequence[Checkpoint]:
        """Return all checkpoints by creation."""
        return sorted(self.tables.checkpoints.values(), key=_creation)

    def live_checkpoints(self) -> Sequence[Checkpoint]:
        """Return the checkpoints in state live, oldest first."""
        return self._in_state(CheckpointState.LIVE)

    def deleting_checkpoints(self) -> Sequence[Checkpoint]:
        """Return the checkpoints in state deleting, oldest first."""
        return self._in_state(CheckpointState.DELETING)

    def damaged_checkpoints(self) -> Sequence[Checkpoint]:
        """Return the checkpoints in state damaged, oldest first."""
        return self._in_state(CheckpointState.DAMAGED)

    def _in_state(self, state: CheckpointState) -> list[Checkpoint]:
        found = [self.tables.checkpoints[name] for name in self.tables.in_state.of(state)]
        return sorted(found, key=_creation)

    def held_checkpoints(self) -> frozenset[str]:
        """Return names that members and unfinished trials refer to."""
        held: set[str | None] = set()
        for member in self.tables.members.values():
            held.update(one.checkpoint for one in (member.head, member.best, *member.states) if one is not None)
        for trial in self._unfinished():
            held.update((trial.parent_checkpoint, trial.progress))
        ledger = self._memory.ledger
        runs = {run.id for run in ledger.runs.values() if run.study == self._id}
        for key in (key for run in runs for key in (*ledger.best.of(run), *ledger.queued.of(run))):
            group = ledger.groups[key]
            if group.best or group.started or group.guaranteed is not None:
                held.add(ledger.seen[group.seen].name)
        held.discard(None)
        return frozenset(cast("set[str]", held))

    def best_trials(self, count: int) -> Sequence[TrialRecord]:
        """Return the completed trials with the best finite fitness and a live checkpoint, best first."""
        trials = self.tables.trials
        finite = self.tables.finite.of_any(self.tables.in_state.of(CheckpointState.LIVE))
        ranked = [(-(trials[trial].order or 0.0), trial) for trial in finite]
        return [trials[trial] for _, trial in heapq.nsmallest(count, ranked)]

    def broken_in_a_row(self) -> int:
        """Return how many trials failed in a row, see `View.broken_in_a_row`."""
        resumed = self.study().resumed_at
        last = max(self.tables.last_completed.get("at", NEVER), NEVER if resumed is None else resumed)
        failed = [self.tables.trials[trial] for trial in self.tables.by_state.of(TrialState.FAILED)]
        return sum((t.ended_at or 0.0) > last for t in failed)

    def _unfinished(self) -> list[TrialRecord]:
        return [self.tables.trials[trial] for state in UNFINISHED for trial in self.tables.by_state.of(state)]

    def evaluation(self) -> MemoryEvaluation | None:
        """Return the evaluation of this study's checkpoints, in the same transaction."""
        ledger = self._memory.ledger
        name = self.study().name
        # Others may watch the study, too, as runs under other names.
        own = next((run.id for run in ledger.runs.values() if run.study == self._id and run.name == name), None)
        return None if own is None else MemoryEvaluation(ledger, own, self._now, self)

    def awaited_groups(self) -> int:
        """Return how many of the study's own groups are queued."""
        return self._memory.ledger.awaited.count(self._id)

    def reports(self, trial: int, token: int | None = None) -> Sequence[Report]:
        """Return what a trial reported, in order."""
        if token is None:
            token = max((t for key, t in self.tables.reports if key == trial), default=0)
        return list(self.tables.reports.get((trial, token), ()))

    def last_reports(self, trial_id: int, token: int, count: int) -> Sequence[Report]:
        """Return the last reports of one attempt, oldest first."""
        return self.tables.reports.get((trial_id, token), [])[-count:] if count > 0 else []

    def averages(self, every: int, step: int, *, besides: int, limit: int) -> Sequence[float]:
        """Return the averages that trials besides one had at a mark, of the newest trials first."""
        found = [
            (trial, average)
            for (e, s, trial), average in self.tables.marks.items()
            if (e, s) == (every, step) and trial != besides
        ]
        return [average for _, average in sorted(found, reverse=True)][:limit]

    # What can be changed

    def apply(self, commands: Sequence[AnyCommand]) -> list[str]:
        """Apply commands in order; return the checkpoints that were marked for deletion."""
        marked: list[str] = []
        for command in commands:
            way = WAYS.get(type(command))
            if way is None:
                self._apply_to_evaluation(command)
                continue
            name = way(self, command)
            if name is not None:
                marked.append(name)
        return marked

    def _apply_to_evaluation(self, command: AnyCommand) -> None:
        evaluation = self.evaluation()
        if evaluation is None:
            raise TypeError(f"{command!r} needs a run, and study {self.study().name!r} has none")
        evaluation.apply_one(cast("EvalCommand", command))

    def set_study(self, study: StudyRecord) -> None:
        """Replace the study's row."""
        self.changes.set(self._memory.studies, self._id, study)

    def undo(self) -> None:
        """Take everything back, newest first."""
        self.changes.undo()


_creation = attrgetter("created_at", "trial", "name")


def _is_result(trial: TrialRecord) -> bool:
    return trial.state is TrialState.COMPLETED and trial.kind is TrialKind.TRAIN


def _came_to(trial: TrialRecord, step: int | None) -> bool:
    if trial.kind is not TrialKind.TRAIN:
        return False
    if trial.state is TrialState.COMPLETED:
        return step is not None and trial.reached_step is not None and trial.reached_step >= step
    return trial.state is TrialState.FAILED or trial.stop_reason is not None
