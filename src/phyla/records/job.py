"""A job, which is what a worker can lease, and the attempts at it: one try each, under one lease."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, final

from phyla.records.json import JsonObject

LOG_FOLLOWS = "; its log is "
"""What stands between how a worker process ended and the path of its log."""


class JobState(StrEnum):
    """Life of a job; the allowed moves are in `phyla.machine.jobs.TRANSITIONS`."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class JobKind(StrEnum):
    """Kinds of jobs.

    Attributes:
        TRAIN: a trial that trains from `start_step` to `end_step`.
        MEASURE: a trial that measures its parent's checkpoint again, for the next decision of its member.
        FINAL: a trial that measures its parent's checkpoint again when training has ended. Its member does not
            change.
        IMPORT: a trial that stands for a checkpoint from elsewhere. It is born completed and trains no step: it
            counts neither in the budget nor as a generation.
        EVALUATE: one shard of one eval task on one checkpoint.
        AGGREGATE: the aggregation of an evaluation group.
    """

    TRAIN = "train"
    MEASURE = "measure"
    FINAL = "final"
    IMPORT = "import"
    EVALUATE = "evaluate"
    AGGREGATE = "aggregate"


class WorkKind(StrEnum):
    """Kinds of work that a worker may take."""

    TRAIN = "train"
    EVALUATE = "evaluate"


class AttemptState(StrEnum):
    """How an attempt stands or ended."""

    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    LOST = "lost"
    RELEASED = "released"
    CANCELLED = "cancelled"


class Phase(StrEnum):
    """What a worker does with its time; at every moment it is in exactly one phase.

    An attempt has the seconds since the worker submitted its last trial, or started, so the attempts of a worker
    add up to its time.

    Attributes:
        CONTROL: it asks for work, submits results, or records that a trial failed.
        WAITING: there was nothing to do.
        LOADING: from the start of training code to its first step of `trial.steps()`.
        TRAINING: from the first step to the moment `trial.steps()` is left. Without `trial.steps()` all the time
            in training code: phyla cannot tell what it loads and saves.
        SAVING: from then until training code returns, the commit of the checkpoint, and all of `save_progress()`.
        EVALUATING: eval tasks that the same worker ran before this trial, or while it paused in `report()`.
    """

    CONTROL = "control"
    WAITING = "waiting"
    LOADING = "loading"
    TRAINING = "training"
    SAVING = "saving"
    EVALUATING = "evaluating"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSpent:
    """Seconds by phase, over the `timed` attempts of those that have `ended`.

    Those that were released or crashed have no times. The time of a trial that a rule stopped counts as training.
    That of evaluation is of all eval tasks, on any worker, if there are any: attempts know only of those that
    training workers ran.
    """

    seconds: Mapping[Phase, float] = field(default_factory=lambda: dict.fromkeys(Phase, 0.0))
    timed: int = 0
    ended: int = 0

    @property
    def total_s(self) -> float:
        """Seconds of all phases."""
        return sum(self.seconds.values())


@final
@dataclass(frozen=True, slots=True)
class Report:
    """Metrics that training reported once, at a step: an age of the weights.

    Attributes:
        number: how many reports the attempt made with this one; 0 where they are not counted, as over plain HTTP.
    """

    step: int
    metrics: dict[str, float]
    number: int = field(default=0, compare=False)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """The reports of the objective in one attempt so far.

    Attributes:
        count: how many there were.
        mean: their mean; nan once one of them was nan or infinite, and while there is none.
        best: the best finite one; nan while there is none.
        step: highest step among them.
        part: some of the objective's metrics at one step, not counted while the others are still to be reported.
    """

    count: int
    mean: float
    best: float
    step: int
    part: Report | None = None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Where trials are compared: the first report of the objective at or after a multiple of `every` steps.

    Attributes:
        every: distance of the marks, in steps.
        step: the mark, a multiple of `every`.
        at: step of the report.
        average: mean of the trial's reports up to that one; nan once one of them was nan or infinite.
        best: best finite report up to that one; nan without any.
    """

    every: int
    step: int
    at: int
    average: float
    best: float


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """The exception that training raised, and its place.

    Attributes:
        kind: type of the exception, and of a command that failed how it ended.
        error: type and message, on one line.
        file: file of the user's code that raised or called what raised, or the command.
        line: line in that file.
        log: the worker's log, which holds the full traceback.
    """

    kind: str
    error: str
    file: str | None = None
    line: int | None = None
    log: str | None = None

    def same(self, other: "Cause") -> bool:
        """Return whether both are one error: the same type at the same line, or the same message."""
        place = self.file is not None and (self.kind, self.file, self.line) == (other.kind, other.file, other.line)
        return place or self.error == other.error

    def words(self) -> str:
        """Return the error, its place, and the log with the traceback, on one line."""
        line = "" if self.line is None else f", line {self.line}"
        place = "" if self.file is None else f" ({self.file}{line})"
        # The output of a command is in files of its own, which its error names.
        traceback = "" if self.log is None or self.line is None else f"; the full traceback is in {self.log}"
        return f"{self.error}{place}{traceback}"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One try at a job.

    Attributes:
        token: fencing token; 1 for the job's first attempt.
        worker: `host:slot:pid:launch` of the process that works on it.
        expires_at: when the lease runs out unless it is renewed.
        outcome: of a completed one the answer that it got, so that a repeated request gets it again, and what its
            worker noticed; of a failed one the cause.
        tally: what it reported of the objective so far; None unless stopping rules are in use.
        timings: seconds by `Phase`, as the worker measured them; None where it could not tell, as after a crash.
    """

    job: int
    token: int
    study: int
    worker: str
    state: AttemptState
    claimed_at: float
    expires_at: float
    ended_at: float | None = None
    outcome: JsonObject | None = None
    error: str | None = None
    tally: Tally | None = None
    timings: Mapping[str, float] | None = None

    @property
    def cause(self) -> Cause | None:
        """The error of training, with its place; None unless training failed."""
        cause: Any = (self.outcome or {}).get("cause")
        return None if cause is None else Cause(**cause)

    @property
    def why(self) -> str:
        """Its cause on one line, or the decisive line of its error; a dash without either."""
        return self.cause.words() if self.cause is not None else summarize_error(self.error)

    @property
    def words(self) -> str:
        """How it ended, and why, on one line."""
        return f"trial {self.job}, attempt {self.token} {self.state}: {self.why}"

    @property
    def noticed(self) -> JsonObject:
        """What its worker noticed about the training function; empty if nothing."""
        notices: Any = (self.outcome or {}).get("noticed", {})
        return dict(notices)


def summarize_error(error: str | None) -> str:
    """Return the decisive line of an error: the last one of a traceback, else the first."""
    lines = [line for line in (error or "").strip().splitlines() if line.strip()]
    if not lines:
        return "-"
    return lines[-1 if lines[0].startswith("Traceback") else 0].strip()
