"""What the machine reads about the queue."""

from collections.abc import Sequence
from typing import Protocol

from phyla.records import Attempt, EvalJob, StudyRecord, TrialRecord


class QueueView(Protocol):
    """The jobs of one study as a transaction sees them; *locks* as in `View`."""

    def now(self) -> float:
        """Return the database's time, in seconds since the epoch; one value throughout the transaction."""
        ...

    def study(self) -> StudyRecord:
        """Return the study."""
        ...

    def new_job_id(self) -> int:
        """Return an id that no other job of this store has or gets."""
        ...

    def job(self, job_id: int) -> TrialRecord | EvalJob | None:
        """Return a job of this study of any kind, or None; locks nothing."""
        ...

    def locked_trial(self, trial_id: int) -> TrialRecord | None:
        """Return a trial of this study, or None; locks it."""
        ...

    def next_pending(self) -> TrialRecord | None:
        """Return the pending trial with the lowest id; locks it and passes over locked ones."""
        ...

    def locked_eval_job(self, job_id: int) -> EvalJob | None:
        """Return an eval job of this study, or None; locks it. Its group has to be locked before."""
        ...

    def next_eval_job(self, holding: int | None) -> EvalJob | None:
        """Return the pending eval job to run next; locks it and passes over locked ones.

        Lowest (priority, rank, group, id) whose `not_before` has come. When the worker holds a checkpoint
        (`holding`, a seen id) that has one of the same priority class, that one.
        """
        ...

    def next_not_before(self) -> float | None:
        """Return when the earliest pending eval job may start that may not start yet."""
        ...

    def group_jobs(self, group: int) -> Sequence[EvalJob]:
        """Return the eval jobs of a group, by id."""
        ...

    def unfinished_jobs(self, group: int) -> int:
        """Return how many eval jobs of a group are pending or running."""
        ...

    def attempt(self, job_id: int, token: int) -> Attempt | None:
        """Return one attempt."""
        ...

    def attempts(self, job_id: int) -> Sequence[Attempt]:
        """Return the attempts of a job, oldest first."""
        ...

    def running(self, worker: str | None = None) -> Sequence[Attempt]:
        """Return the running attempts of one worker, or all of them."""
        ...

    def expired(self, limit: int) -> Sequence[Attempt]:
        """Return running attempts whose lease ran out before `now()`, longest first."""
        ...

    def claimed_ahead(self, expires_after: float) -> Sequence[Attempt]:
        """Return running attempts claimed after `now()` whose lease lasts beyond a time; first to end first.

        There are some after the clock was set back.
        """
        ...
