"""A transaction on a study in memory: what can be asked, and how commands are applied."""

import heapq
import math
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Self, cast, final

from phyla.machine import AnyCommand, EvalCommand
from phyla.records import (
    Attempt,
    Checkpoint,
    CheckpointState,
    Member,
    MemberState,
    Report,
    Scored,
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

    def scored(self) -> int:
        """Return how many members have a published fitness."""
        return len(self.tables.ranked)

    def rank(self, member: Member) -> int:
        """Return how many members rank before this one."""
        return self.tables.ranked.above(*_rank_key(member))

    def at_rank(self, rank: int) -> Member:
        """Return the member at a rank."""
        return self.tables.members[self.tables.ranked[-1 - rank][1]]

    def vectors(self) -> Sequence[tuple[int, tuple[float, ...]]]:
        """Return index and sort keys of the members that may donate."""
        members = self.tables.members.values()
        return [(m.index, m.published.orders) for m in members if m.published and m.published.can_donate]

    def elite(self, index: int) -> Scored | None:
        """Return the elite of a member, or None."""
        return self.tables.elites.get(index)

    def elites(self) -> int:
        """Return how many members have an elite."""
        return len(self.tables.best_elites)

    def elite_at_rank(self, rank: int) -> Scored:
        """Return the elite at a rank."""
        elite = self.tables.elites[self.tables.best_elites[-1 - rank][1]]
        assert elite is not None
        return elite

    def ranked_elites(self) -> Sequence[Scored]:
        """Return all elites, best first."""
        return [self.elite_at_rank(rank) for rank in range(self.elites())]

    def lowest_generation(self) -> int | None:
        """Return the lowest generation of members that are not done."""
        return min(self.tables.active.values(), default=None)

    def most_spent(self) -> int | None:
        """Return the most steps that a ready member has spent."""
        ready = self.tables.ready
        return ready[-1][0] if len(ready) else None

    def next_ready(self, slot: str) -> Member | None:
        """Return the ready member to decide about next."""
        ready = self.tables.ready
        if not len(ready):
            return None
        least, index = ready[0]
        here = [i for i in self.tables.ready_by_slot.of(slot) if self.tables.members[i].spent_steps == least]
        return self.tables.members[min(here, default=index)]

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

    def scored_in(self, generation: int) -> int:
        """Return how many completed trials of a generation have a fitness."""
        scored = self.tables.scored
        return scored.before((generation + 1,)) - scored.before((generation,))

    def ahead(self, generation: int, order: float) -> tuple[int, int]:
        """Return how many completed trials of a generation are better, and how many equal."""
        scored = self.tables.scored
        end = scored.before((generation + 1,))
        better = end - scored.before((generation, math.nextafter(order, math.inf)))
        return better, end - better - scored.before((generation, order))

    def orders(self, generation: int, rank: int, count: int) -> Sequence[float]:
        """Return sort keys of the completed trials of a generation that have a fitness, best first."""
        scored = self.tables.scored
        first, end = scored.before((generation,)), scored.before((generation + 1,))
        return [scored[at][0][1] for at in range(end - 1 - rank, max(first, end - rank - count) - 1, -1)]

    def next_age(self, after: int) -> int | None:
        """Return the lowest age above one, in steps, of weights with a published fitness."""
        place = self.tables.aged.before((after + 1,))
        return self.tables.aged[place][0][0] if place < len(self.tables.aged) else None

    def rank_among(self, ages: tuple[int, int], order: float, member: int) -> int:
        """Return how many members on weights of an age rank before a place."""
        aged = self.tables.aged
        return sum(aged.above((age, order), member) - len(aged) + end for age, _, end in self._ages(ages))

    def at_rank_among(self, ages: tuple[int, int], rank: int) -> tuple[float, int]:
        """Return sort key and index of the member at a rank among those on weights of an age."""
        aged = self.tables.aged
        spans = [(first, end) for _, first, end in self._ages(ages)]
        if len(spans) == 1:
            # They are sorted already.
            (_, order), member = aged[spans[0][1] - 1 - rank]
            return order, member
        return sorted((aged[at][0][1], aged[at][1]) for span in spans for at in range(*span))[-1 - rank]

    def _ages(self, ages: tuple[int, int]) -> Iterator[tuple[int, int, int]]:
        """Iterate over (age, first, end): between which places in their order the members of an age are."""
        age = self.next_age(ages[0] - 1)
        while age is not None and age <= ages[1]:
            yield age, self.tables.aged.before((age,)), self.tables.aged.before((age + 1,))
            age = self.next_age(age)

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
        return self._present(CheckpointState.LIVE)

    def deleting_checkpoints(self) -> Sequence[Checkpoint]:
        """Return the checkpoints in state deleting, oldest first."""
        return self._present(CheckpointState.DELETING)

    def _present(self, state: CheckpointState) -> list[Checkpoint]:
        present = [self.tables.checkpoints[name] for name in self.tables.present.of(state)]
        return sorted(present, key=_creation)

    def held_checkpoints(self) -> frozenset[str]:
        """Return names that members and unfinished trials refer to."""
        held: set[str | None] = set()
        for member in self.tables.members.values():
            head, published = member.head, member.published
            if head is not None:
                held.add(head.checkpoint)
            if published is not None and published is not head:
                held.add(published.checkpoint)
        held.update(elite.checkpoint for elite in self.tables.elites.values() if elite is not None)
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
        finite = self.tables.finite.of_any(self.tables.present.of(CheckpointState.LIVE))
        ranked = [(-(trials[trial].order or 0.0), trial) for trial in finite]
        return [trials[trial] for _, trial in heapq.nsmallest(count, ranked)]

    def broken_in_a_row(self) -> int:
        """Return how many trials failed since the last one completed and the study was last resumed."""
        resumed = self.study().resumed_at
        last = max(self.tables.last_completed.get("at", NEVER), NEVER if resumed is None else resumed)
        failed = [self.tables.trials[trial] for trial in self.tables.by_state.of(TrialState.FAILED)]
        return sum((t.ended_at or 0.0) > last for t in failed)

    def has_unfinished_trials(self) -> bool:
        """Return whether any trial is running or pending."""
        return any(self.tables.by_state.count(state) for state in UNFINISHED)

    def _unfinished(self) -> list[TrialRecord]:
        return [self.tables.trials[trial] for state in UNFINISHED for trial in self.tables.by_state.of(state)]

    def evaluation(self) -> MemoryEvaluation | None:
        """Return the evaluation of this study's checkpoints, in the same transaction."""
        ledger = self._memory.ledger
        name = self.study().name
        # Others may watch the study, too, as runs under other names.
        own = next((run.id for run in ledger.runs.values() if run.study == self._id and run.name == name), None)
        return None if own is None else MemoryEvaluation(ledger, own, self._now, self)

    def unscored(self, member: int) -> int:
        """Return how many checkpoints of a member wait for their fitness."""
        return self._memory.ledger.unscored.count((self._id, member))

    def awaited_groups(self, *, fitness: bool) -> int:
        """Return how many of the study's own groups are queued."""
        awaited = self._memory.ledger.awaited
        return awaited.count((self._id, False)) + (0 if fitness else awaited.count((self._id, True)))

    def has_waiting(self) -> bool:
        """Return whether any member waits."""
        return self.tables.waiting.count(MemberState.WAITING) > 0

    def waiting_generation(self) -> int | None:
        """Return the lowest generation any member waits for."""
        return min(self.tables.awaited.values(), default=None)

    def next_wait_until(self) -> float | None:
        """Return the earliest time any member waits for."""
        waited = (self.tables.members[index].wait_until for index in self.tables.waiting.of(MemberState.WAITING))
        return min((t for t in waited if t is not None), default=None)

    def active_members(self) -> int:
        """Return how many members are not done."""
        return sum(self.tables.active.count(generation) for generation in self.tables.active.values())

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


def _rank_key(member: Member) -> tuple[float, int]:
    published = member.published
    order = published.order if published and published.order is not None else NEVER
    return order, member.index


def _is_result(trial: TrialRecord) -> bool:
    return trial.state is TrialState.COMPLETED and trial.kind is TrialKind.TRAIN


def _came_to(trial: TrialRecord, step: int | None) -> bool:
    if trial.kind is not TrialKind.TRAIN:
        return False
    if trial.state is TrialState.COMPLETED:
        return step is not None and trial.reached_step is not None and trial.reached_step >= step
    return trial.state is TrialState.FAILED or trial.stop_reason is not None
