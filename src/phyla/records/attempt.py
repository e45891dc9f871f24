"""An attempt: one try at a job, under one lease."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, final

from phyla.records.json import JsonObject
from phyla.records.tally import Tally


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

    An attempt has the seconds since the worker handed in its last trial, or started, so the attempts of a worker
    add up to its time.

    Attributes:
        CONTROL: it asks for work, hands work in, or records that a trial failed.
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
class Cause:
    """What training raised, and where.

    Attributes:
        kind: type of the exception.
        error: type and message, on one line.
        file: file of the user's code that raised or called what raised; None where there is none.
        line: line in that file.
        log: the worker's log, which holds the full traceback; None if there is none.
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
        """Return what was raised, where, and which log has the traceback, on one line."""
        place = "" if self.file is None else f" ({self.file}, line {self.line})"
        return f"{self.error}{place}" + ("" if self.log is None else f"; the full traceback is in {self.log}")

    def to_json(self) -> JsonObject:
        """Return it as JSON."""
        return {"kind": self.kind, "error": self.error, "file": self.file, "line": self.line, "log": self.log}


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One try at a job.

    Attributes:
        job: id of the trial or eval job.
        token: fencing token; 1 for the job's first attempt.
        study: id of the study.
        worker: `host:slot:pid:launch` of the process that works on it.
        state: running, or how it ended.
        claimed_at: seconds since the epoch.
        expires_at: when the lease runs out unless it is renewed.
        ended_at: when it ended.
        outcome: of a completed one the answer that it got, so that a repeated request gets it again, and what its
            worker noticed; of a failed one the cause.
        error: what went wrong.
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
        """What training raised, and where; None unless that is how it ended."""
        found: Any = (self.outcome or {}).get("cause")
        return None if found is None else Cause(**found)

    @property
    def words(self) -> str:
        """How it ended on one line, with the cause, or with the line of its error that says what happened."""
        what = self.cause.words() if self.cause is not None else said_by(self.error)
        return f"trial {self.job}, attempt {self.token} {self.state}: {what}"

    @property
    def noticed(self) -> JsonObject:
        """What its worker noticed about the training function; empty if nothing."""
        found: Any = (self.outcome or {}).get("noticed", {})
        return dict(found)


def said_by(error: str | None) -> str:
    """Return the line of an error that says what happened: of a traceback the last one, else the first."""
    lines = [line for line in (error or "").strip().splitlines() if line.strip()]
    if not lines:
        return "-"
    return lines[-1 if lines[0].startswith("Traceback") else 0].strip()
