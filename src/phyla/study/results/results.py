"""What a study has found so far; read-only, and needs no training code."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from phyla import queries
from phyla.errors import StoreError, StudyNotFound, UsageError
from phyla.formatting import format_count
from phyla.queries import every
from phyla.records import (
    Aim,
    Attempt,
    AttemptState,
    Cause,
    Checkpoint,
    CheckpointState,
    EvalJob,
    JobKind,
    JobState,
    Json,
    Member,
    Report,
    RunStart,
    StudyRecord,
    StudyState,
    TimeSpent,
    TrialRecord,
)
from phyla.store.contract import P, Query, R
from phyla.strategies import describe
from phyla.study.declaration import replicate_of
from phyla.study.places import Places, where_of
from phyla.study.results.best import Best, BestCheckpoint, checkpoint_of, front_of
from phyla.study.results.course import course
from phyla.study.results.findings import Finding, findings
from phyla.study.results.progress import Failures, Progress, lease_s, mark_lost_workers, progress
from phyla.study.results.story import Event, read_story
from phyla.validation import check_integer, look_up, plain

if TYPE_CHECKING:
    import pandas as pd

    from phyla.integrations.trackers import Tracker
    from phyla.lineage import Lineage, Schedule
    from phyla.report import StudyData
    from phyla.report.columns import Attempts
    from phyla.report.style import Figure
    from phyla.store import Store
    from phyla.study.results.evaluations import Evaluations

COLUMNS = (
    *("trial", "member", "generation", "kind", "state", "fitness", "start_step", "end_step", "reached_step"),
    *("parent", "jump_from", "decision", "seed", "attempts", "failures", "error", "stop_reason", "checkpoint"),
    *("worker", "created_at", "started_at", "ended_at"),
)
"""Columns of every row of a trial."""
MOST_ID = 2**63 - 1
"""The largest id that a database can hold."""
RENAMED = {"trial": "id", "decision": "reason", "attempts": "token"}
"""Fields of a record by the columns that have other names."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigChange:
    """One setting of a study that was changed while the study existed."""

    at: float  # when, in seconds since the epoch
    name: str  # dotted name of the setting, such as `strategy.total_steps`
    before: Json  # its value until then, as JSON
    after: Json  # its value from then on


@final
class Results:
    """The results of a study so far. Every call reads the store again.

    Attributes:
        places: where the study keeps its things.
        name: name of the study.
        aim: what the study selects for.
        metric: name of the fitness: a metric, or a formula of several.
        maximize: whether high values of the fitness are good.
        replicate: which replicate of which study this is; None if it is none.
        lease_s: seconds a claim lasts unless renewed.
        has_suites: whether the study's checkpoints are evaluated.
        shown_in: the cell of a notebook whose run shows it already; None if none does.
    """

    def __init__(self, store: "Store", study: StudyRecord, places: Places) -> None:
        self._store = store
        self._id = study.id
        self._root = partial(places.checkpoints, study.name, study.config)
        self.places = places
        self.name = study.name
        self.aim = Aim.from_config(study.config)
        self.metric = self.aim.name
        self.maximize = self.aim.maximize
        self.replicate = replicate_of(study.config)
        self.lease_s = lease_s(study.config)
        self.has_suites = bool(study.config.get("suites"))
        self.shown_in: object = None

    def __repr__(self) -> str:
        try:
            counts, best = self.counts(), self.best
        except StoreError:
            return f"<Results of study {self.name!r}, whose store cannot be read now>"
        trials = ", ".join(f"{count} {state}" for state, count in counts.items()) or "none"
        winner = "" if best is None else f", best {self.metric} {best.fitness:g} (trial {best.trial})"
        return f"<Results of study {self.name!r}: {self.state}, trials: {trials}{winner}>"

    def _query(self, query: Query[P, R], /, *args: P.args, **named: P.kwargs) -> R:
        return self._store.look(self._id, query, *args, **named)

    def study(self) -> StudyRecord:
        """Return the study's current record."""
        return self._query(queries.study)

    @property
    def state(self) -> StudyState:
        """Whether the study is running, stopped, completed or failed."""
        return self.study().state

    @property
    def best(self) -> Best | None:
        """The best completed trial whose checkpoint is kept; None while there is none.

        Where scores are noisy it is the best by estimate, not the one with the luckiest score; after a final, the
        winner of that. With a Pareto objective the trial on the front that is best in the first goal.
        """
        return next(iter(self.front()), None)

    def front(self) -> list[Best]:
        """Return the trials on the Pareto front, best in the first goal first; of equal ones the earliest.

        The front is that of the trials whose checkpoints are kept. Without trade-offs it has one trial, the best.
        """
        return front_of(self.name, self.aim, self._query(queries.best), self._root)

    def checkpoint(self, trial: int | TrialRecord) -> BestCheckpoint:
        """Return the checkpoint that a trial left: `results.checkpoint(trial).path` is its directory.

        Raises:
            UsageError: there is no such trial.
            CheckpointMissing: it left no checkpoint, or that was collected since.
        """
        key = trial.id if isinstance(trial, TrialRecord) else _check_id(trial)
        for row in self._query(queries.trials, ids=[key]):
            rows = self._query(queries.checkpoints, names=[row.checkpoint or ""])
            return checkpoint_of(self.name, row, rows[0] if rows else None, self._root)
        raise UsageError(f"study {self.name!r} has no trial {key}")

    def no_best(self) -> str:
        """Return why there is no best trial, where there is none."""
        scored = [trial for trial in self.trials() if trial.order is not None and math.isfinite(trial.order)]
        count = sum(trial.state is JobState.COMPLETED and trial.kind is JobKind.TRAIN for trial in scored)
        if not count:
            return f"study {self.name!r} has no completed trial that is feasible and has a finite fitness yet"
        return (
            f"study {self.name!r}: of {format_count(count, 'completed trial')} with a finite fitness no "
            "checkpoint can be used: all are damaged or missing. To see which: "
            f"{self.places.command('doctor', self.name)}"
        )

    def changes(self) -> list[ConfigChange]:
        """Return the changes of settings since the study was created, oldest first.

        A setting holds for decisions taken after its change; trials that were running kept theirs.
        """
        entries: Any = self.study().config.get("changes", [])
        return [
            ConfigChange(at=entry["at"], name=name, before=before, after=after)
            for entry in entries
            for name, (before, after) in entry["changes"].items()
        ]

    def trials(self) -> list[TrialRecord]:
        """Return all trials by id."""
        return self._query(queries.trials)

    @property
    def incomplete(self) -> str | None:
        """Which members were given up in a study that is complete without them, and why; None where none was."""
        from phyla.study.results.given_up import describe_given_up

        return describe_given_up(self._store, self.study())

    def members(self) -> list[Member]:
        """Return all members by index."""
        return self._query(queries.members)

    def attempts(self) -> list[Attempt]:
        """Return all attempts by trial and token."""
        return self._query(queries.attempts)

    def failed(self) -> list[TrialRecord]:
        """Return the trials that failed for good, and those that failed and are retried, by id."""
        return self._query(queries.broken_trials)

    def causes(self, trials: Iterable[TrialRecord]) -> dict[int, Cause]:
        """Return why the last failed attempt at each of some trials failed, by trial, where that is known."""
        attempts = self._query(queries.attempts, jobs=[trial.id for trial in trials])
        return {attempt.job: attempt.cause for attempt in attempts if attempt.cause}

    def checkpoints(self) -> list[Checkpoint]:
        """Return all checkpoints, deleted ones too."""
        return self._query(queries.checkpoints)

    def damaged(self) -> list[Checkpoint]:
        """Return the checkpoints whose files differ from what was committed, oldest first; see their `error`."""
        return self._query(queries.checkpoints, state=CheckpointState.DAMAGED)

    def reports(self, trial: int) -> list[Report]:
        """Return what a trial reported, by step: of each attempt, up to where the next one went on.

        Raises:
            UsageError: there is no such trial.
        """
        key = _check_id(trial)
        reports = self._query(queries.reports, key)
        if not reports and not self._query(queries.trials, ids=[key]):
            raise UsageError(f"study {self.name!r} has no trial {key}")
        return reports

    def story(self, trial: int) -> list[Event]:
        """Return what happened to a trial, in order: why it was created, its attempts, its end, its descendants.

        Raises:
            UsageError: there is no such trial.
        """
        events = self._query(read_story, _check_id(trial))
        if not events:
            command = self.places.command("trials", self.name)
            raise UsageError(f"study {self.name!r} has no trial {trial}; `{command}` lists its trials")
        return events

    def starts(self) -> list[RunStart]:
        """Return how the study was started, each time: command, code, commit, packages, machine."""
        return self._query(queries.starts)

    def counts(self) -> dict[str, int]:
        """Return how many training trials are in each state."""
        return self._query(queries.summary).counts

    def findings(self) -> list[Finding]:
        """Return probable mistakes that raised no error, such as weights that training never loads."""
        return self._query(findings)

    def progress(self, most: int | None = None, first: int = 0) -> Progress:
        """Return the study's progress with all members by index, or the best from `first` on, up to `most`."""
        return mark_lost_workers(self._query(progress, most, first), self.places.locks)

    def failures(self, since: float) -> Callable[[], list[Attempt]]:
        """Return a function whose calls return the attempts that failed since `since` and the last call."""
        failures = Failures(since)
        return lambda: failures.new(self._store, self._id)

    def course(self, points: int) -> list[tuple[float, float, float]]:
        """Return the best fitness so far, the median and the worse quartile, at no more than `points` times."""
        return self._query(course, points)

    def lineage(self) -> "Lineage":
        """Return the tree of trials."""
        from phyla.lineage import Lineage

        return Lineage(self.trials())

    def schedule(self, trial: int | None = None) -> "Schedule":
        """Return the hyperparameters over the steps that led to a trial, by default the best one.

        Raises:
            StudyNotFound: no trial has completed yet, or there is none of that id.
        """
        if trial is None:
            best = self.best
            if best is None:
                raise StudyNotFound(self.no_best())
            trial = best.trial
        from phyla.lineage import Schedule

        return Schedule.along(self._ancestry(trial)[::-1])

    def _ancestry(self, trial: int) -> Sequence[TrialRecord]:
        path = self._query(queries.ancestry, _check_id(trial))
        if not path or path[0].measures:
            raise StudyNotFound(f"study {self.name!r} has no trial {trial} that trains")
        return path

    def evaluations(self) -> "Evaluations":
        """Return the results of the suites on the study's checkpoints; raise if the study has no suites."""
        from phyla.study.results.evaluations import evaluations_of

        return evaluations_of(self._store, self.name, self.places)

    def evaluating(self) -> "Attempts":
        """Return when each eval task of the study ran, by its newest attempt, and on which worker."""
        from phyla.report.columns import Attempts

        return Attempts.of(map(_ran, filter(_has_ended, every(self._store, self._id, queries.eval_jobs))))

    def time_spent(self) -> TimeSpent:
        """Return the time of the workers: seconds by phase."""
        return self._query(queries.time_spent)

    def data(self) -> "StudyData":
        """Return the data of figures and reports; they read details of single trials later."""
        from phyla.report import StudyData
        from phyla.report.columns import Attempts, Trials

        study, members = self.study(), self.members()
        best = None if self.aim.tradeoffs else self.best
        # Pages of a long history are read at different times. Trials come last, so that none is missing.
        attempts = Attempts.of(every(self._store, self._id, queries.attempts))
        return StudyData(
            study=study,
            members=tuple(members),
            trials=Trials.of(every(self._store, self._id, queries.trials), self._chosen, self.aim.tradeoffs),
            attempts=attempts,
            time=self.time_spent(),
            aim=self.aim,
            path_of=self._path_of,
            damaged=tuple(self.damaged()),
            evaluating=self.evaluating(),
            starts=tuple(self.starts()),
            best_trial=None if best is None else best.trial,
            expected=None if best is None or best.expected is None else best.expected.value,
            unclear=best is not None and best.unclear,
        )

    def _chosen(self, ids: Sequence[int]) -> Sequence[TrialRecord]:
        return self._query(queries.trials, ids=ids)

    def _path_of(self, checkpoint: str) -> str | None:
        rows = self._query(queries.checkpoints, names=[checkpoint])
        return next((where_of(row, self._root()) for row in rows if row.state is CheckpointState.LIVE), None)

    def figure(self, name: str = "progress") -> "Figure":
        """Return one of `phyla.report.STUDY_FIGURES`, such as "progress", "phylogeny" or "schedules"."""
        from phyla.report import STUDY_FIGURES

        return look_up("figure", name, STUDY_FIGURES)(self.data())

    def _ipython_display_(self) -> None:
        from phyla.report.notebook import display
        from phyla.study.results.notebook import cell, summary

        # The run in the same cell shows it above.
        is_shown = self.shown_in is not None and self.shown_in == cell()
        display(None if is_shown else summary(self), self.figure())

    def write_report(self, path: str | Path, *, baseline: "Results | None" = None) -> Path:
        """Write one self-contained HTML file with the figures, replacing it if it exists; return its path.

        Args:
            path: of the file.
            baseline: another study, whose best and median are drawn in the figure of progress, too.

        Raises:
            UsageError: the baseline has another objective.
        """
        from phyla.report import study_sections, write_pages
        from phyla.study.results.evaluations import ROWS
        from phyla.study.results.pages.evaluations import evaluation_history
        from phyla.study.results.pages.study import pages_of

        if baseline is not None and (baseline.metric, baseline.maximize) != (self.metric, self.maximize):
            raise UsageError(
                f"study {baseline.name!r} cannot be a baseline of {self.name!r}: it selects for "
                f"'{baseline.aim.description}', not '{self.aim.description}'"
            )
        pages, data = pages_of(self), self.data()
        sections = [*study_sections(data, None if baseline is None else baseline.data())]
        if self.has_suites:
            sections += evaluation_history(self.evaluations().data(last=ROWS))
        return write_pages(path, pages, sections, data.last_moment)

    def write_tracker(self, tracker: "Tracker") -> int:
        """Write all that is stored to a tracker, such as one of `phyla.integrations.trackers`; return how much.

        Raises:
            ImportError: a library is missing.
            Exception: whatever the tracker raises.
        """
        from phyla.study.results.tracker_rows import rebuild

        return rebuild(tracker, self._store, self.study(), self.places)

    def dataframe(self) -> "pd.DataFrame":
        """Return one row per trial; hyperparameters as `params.*`, metrics as `metrics.*`.

        Raises:
            ImportError: pandas is not installed; `pip install "phyla[pandas]"`.
        """
        from phyla.report.notebook import dataframe

        frame = dataframe(map(trial_row, self.trials()))
        import pandas as pd

        for column in {"created_at", "started_at", "ended_at"} & {*frame}:
            frame[column] = pd.to_datetime(frame[column], unit="s", utc=True)
        return frame


def _check_id(trial: Any) -> int:
    """Return the id of a trial as a database takes it; from a data frame it may be NumPy's, or a whole float."""
    value = plain(trial)
    whole = isinstance(value, float) and value.is_integer()
    return check_integer("trial", int(value) if whole else value, least=0, most=MOST_ID)


def _has_ended(job: EvalJob) -> bool:
    return job.started_at is not None and job.ended_at is not None


def _ran(job: EvalJob) -> Attempt:
    """Return an eval job as an attempt, of which only the times and the worker are looked at."""
    return Attempt(
        job=job.id,
        token=job.token,
        study=job.study,
        worker=job.worker or "",
        state=AttemptState.COMPLETED,
        claimed_at=job.started_at or 0.0,
        expires_at=job.ended_at or 0.0,
        ended_at=job.ended_at,
    )


def trial_row(trial: TrialRecord) -> dict[str, Any]:
    """Return a trial as one flat row."""
    row = {name: getattr(trial, RENAMED.get(name, name)) for name in COLUMNS}
    for name in ("decision", "stop_reason"):
        row[name] = None if row[name] is None else describe(row[name])
    row |= {f"params.{name}": value for name, value in trial.params.items()}
    row |= {f"metrics.{name}": value for name, value in trial.metrics.items()}
    if trial.criteria is not None:
        # The values that several metrics were judged by, which may be means of reports.
        row |= {f"criteria.{name}": value for name, value in trial.criteria.values.items()}
        row["infeasible"] = trial.criteria.infeasible
    return row
