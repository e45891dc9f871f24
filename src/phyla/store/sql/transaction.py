"""One transaction on one study, on the driver's cursor."""

from collections.abc import Sequence
from typing import final

from phyla.machine import AnyCommand, EndAttempt, EvalCommand, SetConfig, SetStudyState
from phyla.records import (
    Attempt,
    Checkpoint,
    Member,
    Report,
    StudyRecord,
    TrialRecord,
)
from phyla.store.sql.backend import Backend, Cursor
from phyla.store.sql.evaluation import SqlEvaluation
from phyla.store.sql.rows import (
    Row,
    Values,
    attempt_record,
    batch_records,
    checkpoint_record,
    member_record,
    trial_record,
)
from phyla.store.sql.writing import Held, Writer

NEVER = float("-inf")
NAN = float("nan")

_MAKES_WORK = (EndAttempt, SetStudyState, SetConfig)
"""What workers that have nothing to do wait for."""


@final
class SqlTransaction:
    """Reads and changes one study.

    Args:
        backend: the database.
        cursor: inside an open transaction.
        study: the study's row.
        now: the database's time.
        write: whether rows are locked where that is promised.
    """

    def __init__(
        self,
        backend: Backend,
        cursor: Cursor,
        study: StudyRecord,
        now: float,
        *,
        write: bool,
    ) -> None:
        self._backend = backend
        self._sql = backend.statements if write else backend.reading
        self._cursor = cursor
        self._id = study.id
        self._now = now
        self._held = Held(study)
        self._writer = Writer(self._sql, cursor, self._held)
        self._write = write
        self._evaluation: SqlEvaluation | None = None
        self._asked_evaluation = False

    def _one(self, statement: str, **key: object) -> Row | None:
        key["k_study"] = self._id
        self._cursor.execute(statement, key)
        row: Row | None = self._cursor.fetchone()
        return row

    def _all(self, statement: str, **key: object) -> list[Row]:
        key["k_study"] = self._id
        self._cursor.execute(statement, key)
        return self._cursor.fetchall()

    def _count(self, statement: str, **key: object) -> int:
        row = self._one(statement, **key)
        return int(row[0]) if row else 0

    # The study

    def now(self) -> float:
        """Return the database's time, one value throughout the transaction."""
        return self._now

    def study(self) -> StudyRecord:
        """Return the study."""
        return self._held.study

    @property
    def size(self) -> int:
        """Number of members."""
        return self._held.study.population_size

    # Members

    def member(self, index: int) -> Member:
        """Return a member by its index."""
        row = self._one(self._sql.member, k_member=index)
        if row is None:
            raise KeyError(f"study {self._id} has no member {index}")
        return member_record(row)

    def locked_member(self, index: int) -> Member:
        """Return a member; locks it."""
        row = self._one(self._sql.locked_member, k_member=index)
        if row is None:
            raise KeyError(f"study {self._id} has no member {index}")
        return self._held.member(member_record(row))

    def members(self) -> Sequence[Member]:
        """Return all members by index, as one read."""
        record = self._backend.members.record
        return [record(tuple(row)) for row in self._all(self._sql.all_members)]

    def locked_ready(self, seen: Member) -> Member | None:
        """Lock a ready member; None if another transaction has it locked, or changed it since it was seen."""
        row = self._one(self._sql.locked_ready, k_member=seen.index)
        if row is None or self._backend.members.record(tuple(row)) != seen:
            return None
        return self._held.member(seen)

    # Trials

    def new_trial_id(self) -> int:
        """Return an id that no other trial of this store has or gets."""
        return self._backend.new_trial_id(self._cursor)

    def trial(self, trial_id: int) -> TrialRecord:
        """Return a trial."""
        row = self._one(self._sql.trial, k_trial=trial_id)
        if row is None:
            raise KeyError(f"study {self._id} has no trial {trial_id}")
        return trial_record(row)

    def locked_trial(self, trial_id: int) -> TrialRecord | None:
        """Return a trial of this study, or None; locks it."""
        row = self._one(self._sql.locked_trial, k_trial=trial_id)
        return None if row is None else self._held.trial(trial_record(row))

    def next_pending(self) -> TrialRecord | None:
        """Return the pending trial with the lowest id; locks it and passes over locked ones."""
        row = self._one(self._sql.next_pending)
        return None if row is None else self._held.trial(trial_record(row))

    def trials(
        self, *, member: int | None = None, after: int = 0, limit: int | None = None
    ) -> Sequence[TrialRecord]:
        """Return trials by id, from the first one whose id is above `after`."""
        sql = self._sql
        key: Values = {"k_after": after}
        if limit is not None:
            key["k_limit"] = limit
        if member is None:
            statement = sql.trials if limit is None else sql.trials_page
        else:
            key["k_member"] = member
            statement = sql.trials_of_member if limit is None else sql.trials_of_member_page
        return [trial_record(row) for row in self._all(statement, **key)]

    def counts(self) -> dict[str, int]:
        """Return how many trials of kind train are in each state.

        Completed ones are not counted but added up from their members, whose `generation` is that number.
        """
        counted = self._all(self._sql.count_unfinished) + self._all(self._sql.count_given_up)
        counts: dict[str, int] = {row[0]: row[1] for row in counted}
        completed = self._count(self._sql.spent_generations)
        return {**counts, "completed": completed} if completed else counts

    def last_completed(self, count: int) -> Sequence[TrialRecord]:
        """Return the training trials that completed last, newest first."""
        return [trial_record(row) for row in self._all(self._sql.last_completed, k_limit=count)]

    def ended(self, step: int | None) -> Sequence[TrialRecord]:
        """Return the training trials that came to an age, broke, or were stopped by a rule, as they ended."""
        rows = self._all(self._sql.abandoned) if step is None else self._all(self._sql.ended, k_step=step)
        return sorted([trial_record(row) for row in rows], key=lambda trial: (trial.ended_at or 0.0, trial.id))

    def unfinished(self) -> Sequence[TrialRecord]:
        """Return the trials that are running or queued for a retry, by id."""
        found = [trial_record(row) for row in self._all(self._sql.unfinished)]
        return sorted(found, key=lambda trial: trial.id)

    def results(self, generation: int) -> Sequence[TrialRecord]:
        """Return the completed training trials of a generation that have a fitness, by id."""
        return [trial_record(row) for row in self._all(self._sql.results, k_generation=generation)]

    def best_trials(self, count: int) -> Sequence[TrialRecord]:
        """Return the completed trials with the best finite fitness and a live checkpoint, best first."""
        rows = self._all(self._sql.best_trials, k_order=NEVER, k_limit=count)
        return [trial_record(row) for row in rows]

    def broken_in_a_row(self) -> int:
        """Return how many trials failed in a row, see `View.broken_in_a_row`."""
        resumed = self.study().resumed_at
        return self._count(self._sql.broken_in_a_row, k_now=NEVER if resumed is None else resumed)

    # Attempts and what they reported

    def attempt(self, trial_id: int, token: int) -> Attempt | None:
        """Return one attempt."""
        row = self._one(self._sql.attempt, k_trial=trial_id, k_token=token)
        return None if row is None else attempt_record(row)

    def attempts(self, trial_id: int) -> Sequence[Attempt]:
        """Return the attempts of a trial, oldest first."""
        return [attempt_record(row) for row in self._all(self._sql.attempts, k_trial=trial_id)]

    def all_attempts(self) -> Sequence[Attempt]:
        """Return all attempts by (trial, token)."""
        return [attempt_record(row) for row in self._all(self._sql.all_attempts)]

    def running(self, worker: str | None = None) -> Sequence[Attempt]:
        """Return the running attempts of one worker, or all of them."""
        if worker is None:
            rows = self._all(self._sql.running)
        else:
            rows = self._all(self._sql.running_of_worker, k_worker=worker)
        return [attempt_record(row) for row in rows]

    def expired(self, limit: int) -> Sequence[Attempt]:
        """Return running attempts whose lease ran out, longest first; passes over locked trials."""
        rows = self._all(self._sql.expired, k_now=self._now, k_limit=limit)
        return [attempt_record(row) for row in rows]

    def claimed_ahead(self, expires_after: float) -> Sequence[Attempt]:
        """Return running attempts that were claimed after `now()`, and whose lease lasts beyond a time."""
        rows = self._all(self._sql.claimed_ahead, k_now=self._now, k_expires_after=expires_after)
        return [attempt_record(row) for row in rows]

    def reports(self, trial: int, token: int | None = None) -> Sequence[Report]:
        """Return what a trial reported, in order."""
        if token is None:
            rows = self._all(self._sql.reports_of_newest, k_trial=trial)
        else:
            rows = self._all(self._sql.reports_of_token, k_trial=trial, k_token=token)
        return [report for (batch,) in rows for report in batch_records(batch)]

    def last_reports(self, trial_id: int, token: int, count: int) -> Sequence[Report]:
        """Return the last reports of one attempt, oldest first."""
        if count < 1:
            return []
        # A batch holds at least one report.
        rows = self._all(self._sql.last_reports, k_trial=trial_id, k_token=token, k_limit=count)
        found = [report for (batch,) in reversed(rows) for report in batch_records(batch)]
        return found[-count:]

    def averages(self, every: int, step: int, *, besides: int, limit: int) -> Sequence[float]:
        """Return the averages that trials besides one had at a mark, of the newest trials first."""
        rows = self._all(self._sql.averages, k_every=every, k_step=step, k_trial=besides, k_limit=limit)
        return [NAN if average is None else average for (average,) in rows]

    # Checkpoints

    def checkpoint(self, name: str) -> Checkpoint | None:
        """Return a checkpoint's row."""
        row = self._one(self._sql.checkpoint, k_name=name)
        return None if row is None else checkpoint_record(row)

    def checkpoints(self) -> Sequence[Checkpoint]:
        """Return all checkpoints by creation."""
        return [checkpoint_record(row) for row in self._all(self._sql.checkpoints)]

    def live_checkpoints(self) -> Sequence[Checkpoint]:
        """Return the checkpoints in state live, oldest first."""
        return [checkpoint_record(row) for row in self._all(self._sql.live_checkpoints)]

    def deleting_checkpoints(self) -> Sequence[Checkpoint]:
        """Return the checkpoints in state deleting, oldest first."""
        return [checkpoint_record(row) for row in self._all(self._sql.deleting_checkpoints)]

    def damaged_checkpoints(self) -> Sequence[Checkpoint]:
        """Return the checkpoints in state damaged, oldest first."""
        return [checkpoint_record(row) for row in self._all(self._sql.damaged_checkpoints)]

    def held_checkpoints(self) -> frozenset[str]:
        """Return names that members, unfinished trials and evaluation refer to."""
        rows = self._all(self._sql.unfinished_checkpoints) + self._all(self._sql.evaluation.held_checkpoints)
        held = {name for row in rows for name in row if name is not None}
        for member in self.members():
            held |= {one.checkpoint for one in (member.head, member.best, *member.states) if one is not None}
        return frozenset(held)

    # Evaluation

    def evaluation(self) -> SqlEvaluation | None:
        """Return the evaluation of this study's checkpoints, in the same transaction."""
        if not self._asked_evaluation:
            # Others may watch the study, too, as runs under other names.
            row = self._one(self._sql.evaluation.run_of_study, k_name=self.study().name)
            run = self._backend.runs.record(row)
            if run is not None:
                self.evaluated_by(
                    SqlEvaluation(self._backend, self._cursor, run, self._now, self, write=self._write)
                )
            self._asked_evaluation = True
        return self._evaluation

    def evaluated_by(self, evaluation: SqlEvaluation) -> None:
        """Take the evaluation that is open already, if it is that of the study's own run."""
        if evaluation.run().name == self.study().name:
            self._evaluation = evaluation
            self._asked_evaluation = True

    def awaited_groups(self) -> int:
        """Return how many of the study's own groups are queued."""
        return self._count(self._sql.evaluation.awaited_groups)

    def apply(self, commands: Sequence[AnyCommand]) -> list[str]:
        """Apply commands in order; return the checkpoints that were marked for deletion."""
        if any(isinstance(command, _MAKES_WORK) for command in commands):
            self._backend.announce(self._cursor)
        return self._writer.apply(commands, self._apply_one_of_evaluation)

    def _apply_one_of_evaluation(self, command: EvalCommand) -> None:
        evaluation = self.evaluation()
        if evaluation is None:
            raise TypeError(f"{command!r} needs a run, and study {self.study().name!r} has none")
        evaluation.apply_one(command)
