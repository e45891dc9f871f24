"""What a study has found so far; read-only, and needs no training code."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, final

from phyla.errors import ConnectionLost, StoreError, StudyNotFound, UsageError
from phyla.formatting import counted
from phyla.records import (
    Aim,
    Attempt,
    AttemptState,
    Cause,
    Checkpoint,
    CheckpointState,
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
from phyla.store import pages, pages_of_attempts, reports_that_count
from phyla.store.retry import again
from phyla.strategies import describe
from phyla.study.declaration import replicate_of
from phyla.study.places import Places, where_of
from phyla.study.results.best import Best, BestCheckpoint, checkpoint_of, read_front
from phyla.study.results.course import course
from phyla.study.results.findings import Finding, findings
from phyla.study.results.progress import Failures, Progress, lease_s, look
from phyla.study.results.story import Event, read_story
from phyla.validation import known

if TYPE_CHECKING:
    import pandas as pd

    from phyla.integrations.trackers import Tracker
    from phyla.lineage import Lineage, Schedule
    from phyla.report import StudyData
    from phyla.report.columns import Attempts
    from phyla.report.style import Figure
    from phyla.store import Reader, Store
    from phyla.study.results.evaluations import Evaluations

T = TypeVar("T")

COLUMNS = (
    *("trial", "member", "generation", "kind", "state", "fitness", "start_step", "end_step", "reached_step"),
    *("parent", "jump_from", "decision", "seed", "attempts", "failures", "error", "stop_reason", "checkpoint"),
    *("worker", "created_at", "started_at", "ended_at"),
)
"""Columns of every row of a trial."""
ROWS = 1000
"""Eval tasks that are read at a time."""
RENAMED = {"trial": "id", "decision": "reason", "attempts": "token"}


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
    """What a study has found so far. Every call reads the store anew.

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

    @again(ConnectionLost)
    def _read(self, read: "Callable[[Reader], T]") -> T:
        with self._store.reader(self._id) as reader:
            return read(reader)

    def study(self) -> StudyRecord:
        """Return the study as it stands."""
        return self._read(lambda reader: reader.study())

    @property
    def state(self) -> StudyState:
        """Whether the study is running, stopped, completed or failed."""
        return self.study().state

    @property
    def best(self) -> Best | None:
        """The completed trial with the best fitness whose checkpoint is kept; None while there is none.

        With a Pareto objective the trial on the front that is best in the first goal.
        """
        return next(iter(self.front()), None)

    def front(self) -> list[Best]:
        """Return the trials on the Pareto front, best in the first goal first; of equal ones the earliest.

        The front is that of the trials whose checkpoints are kept. Without trade-offs it has one trial, the best.
        """
        return self._read(lambda reader: [*read_front(reader, self.aim, self._root)])

    def checkpoint(self, trial: int | TrialRecord) -> BestCheckpoint:
        """Return the checkpoint that a trial left: `results.checkpoint(trial).path` is its directory.

        Raises:
            UsageError: there is no such trial.
            CheckpointMissing: it left no checkpoint, or that was collected since.
        """
        key = trial if isinstance(trial, int) else trial.id
        try:
            return self._read(lambda reader: checkpoint_of(reader, reader.trial(key), self._root))
        except KeyError:
            raise UsageError(f"study {self.name!r} has no trial {key}") from None

    def no_best(self) -> str:
        """Return why there is no best trial, where there is none."""
        scored = [trial for trial in self.trials() if trial.order is not None and math.isfinite(trial.order)]
        count = sum(trial.state is JobState.COMPLETED and trial.kind is JobKind.TRAIN for trial in scored)
        if not count:
            return f"study {self.name!r} has no completed trial that is feasible and has a finite fitness yet"
        return (
            f"study {self.name!r}: of {counted(count, 'completed trial')} with a finite fitness no checkpoint can "
            f"be used: all are damaged or missing. To see which: {self.places.command('doctor', self.name)}"
        )

    def changes(self) -> list[ConfigChange]:
        """Return what was changed about the study since it was made, oldest first.

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
        return self._read(lambda reader: list(reader.trials()))

    @property
    def incomplete(self) -> str | None:
        """Which members were given up in a study that is complete without them, and why; None where none was."""
        from phyla.study.results.given_up import incomplete

        return incomplete(self._store, self.study())

    def members(self) -> list[Member]:
        """Return all members by index."""
        return self._read(lambda reader: list(reader.members()))

    def attempts(self) -> list[Attempt]:
        """Return all attempts by trial and token."""
        return self._read(lambda reader: list(reader.trial_attempts()))

    def failed(self) -> list[TrialRecord]:
        """Return the trials that failed, and those that failed so far and are tried again, by id."""

        def read(reader: "Reader") -> Iterator[TrialRecord]:
            yield from (trial for trial in reader.ended(None) if trial.state is JobState.FAILED)
            yield from (trial for trial in reader.unfinished() if trial.failures)

        return self._read(lambda reader: sorted(read(reader), key=lambda trial: trial.id))

    def causes(self, trials: Iterable[TrialRecord]) -> dict[int, Cause]:
        """Return why the last failed attempt at each of some trials failed, by trial, where that is known."""

        def read(reader: "Reader") -> Iterator[Attempt]:
            for trial in trials:
                yield from reader.attempts(trial.id)

        return self._read(lambda reader: {attempt.job: attempt.cause for attempt in read(reader) if attempt.cause})

    def checkpoints(self) -> list[Checkpoint]:
        """Return all checkpoints, deleted ones too."""
        return self._read(lambda reader: list(reader.checkpoints()))

    def damaged(self) -> list[Checkpoint]:
        """Return the checkpoints whose files are not what was committed, oldest first; see their `error`."""
        return self._read(lambda reader: list(reader.checkpoints(CheckpointState.DAMAGED)))

    def reports(self, trial: int) -> list[Report]:
        """Return what a trial reported, by step: of each attempt, up to where the next one went on."""
        rows = self._read(lambda reader: list(reader.trials(after=trial - 1, limit=1)))
        return self._read(
            lambda reader: [
                report for row in rows if row.id == trial for report in reports_that_count(reader, row)
            ]
        )

    def story(self, trial: int) -> list[Event]:
        """Return what happened to a trial, in order: why it was made, its attempts, its end, what came of it.

        Raises:
            UsageError: there is no such trial.
        """
        try:
            return self._read(lambda reader: read_story(reader, trial))
        except KeyError:
            command = self.places.command("trials", self.name)
            raise UsageError(
                f"study {self.name!r} has no trial {trial}; `{command}` lists those there are"
            ) from None

    def starts(self) -> list[RunStart]:
        """Return how the study was started, each time: command, code, commit, packages, machine."""
        return self._read(lambda reader: list(reader.starts()))

    def counts(self) -> dict[str, int]:
        """Return how many training trials are in each state."""
        return self._read(lambda reader: reader.counts())

    def findings(self) -> list[Finding]:
        """Return what is probably wrong although nothing raised, such as weights that nobody loads."""
        return self._read(lambda reader: list(findings(reader)))

    def progress(self, most: int | None = None) -> Progress:
        """Return how far the study is, with all members by index, or with the best ones, at most `most`."""
        return self._read(
            lambda reader: look(
                reader, reader.members() if most is None else reader.foremost(most), self.places.locks
            )
        )

    def failures(self, since: float) -> Callable[[], list[Attempt]]:
        """Return a function that tells, at each call, the attempts that failed since `since` and the last call."""
        failures = Failures(since)
        return lambda: self._read(failures.new)

    def course(self, points: int) -> list[tuple[float, float, float]]:
        """Return the best fitness so far, the median and the worse quartile, at no more than `points` times."""
        return self._read(lambda reader: course(reader, points))

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
        try:
            path = self._read(lambda reader: reader.ancestry(trial))
        except KeyError:
            path = ()
        if not path or path[0].kind is JobKind.MEASURE:
            raise StudyNotFound(f"study {self.name!r} has no trial {trial} that trains")
        return path

    def evaluations(self) -> "Evaluations":
        """Return what the suites have found on the study's checkpoints; a study without suites is refused."""
        from phyla.study.results.evaluations import evaluations_of

        return evaluations_of(self._store, self.name, self.places)

    def evaluating(self) -> "Attempts":
        """Return when each eval task of the study ran, by its newest attempt, and on which worker."""
        from phyla.report.columns import Attempts

        return self._read(lambda reader: Attempts.of(_read_runs(reader)))

    def time_spent(self) -> TimeSpent:
        """Return where the time of its workers went: seconds by phase."""
        return self._read(lambda reader: reader.time_spent())

    def data(self) -> "StudyData":
        """Return what the figures and the report read; what they show of single trials they read later."""
        from phyla.report import StudyData
        from phyla.report.columns import Attempts, Trials

        evaluating = self.evaluating()
        with self._store.reader(self._id) as reader:
            return StudyData(
                study=reader.study(),
                members=tuple(reader.members()),
                trials=Trials.of(pages(reader), self._chosen, self.aim.tradeoffs),
                attempts=Attempts.of(pages_of_attempts(reader)),
                time=reader.time_spent(),
                aim=self.aim,
                path_of=self._path_of,
                damaged=tuple(reader.checkpoints(CheckpointState.DAMAGED)),
                evaluating=evaluating,
                starts=tuple(reader.starts()),
            )

    def _chosen(self, ids: Sequence[int]) -> Sequence[TrialRecord]:
        return self._read(lambda reader: reader.chosen_trials(ids))

    def _path_of(self, checkpoint: str) -> str | None:
        row = self._read(lambda reader: reader.checkpoint(checkpoint))
        return where_of(row, self._root()) if row is not None and row.state is CheckpointState.LIVE else None

    def figure(self, name: str = "progress") -> "Figure":
        """Return one of `phyla.report.STUDY_FIGURES`, such as "progress", "phylogeny" or "schedules"."""
        from phyla.report import STUDY_FIGURES

        return known("figure", name, STUDY_FIGURES)(self.data())

    def _ipython_display_(self) -> None:
        from phyla.report.notebook import display
        from phyla.study.results.notebook import cell, summary

        # The run of the same cell shows it above.
        shown = self.shown_in is not None and self.shown_in == cell()
        display(None if shown else summary(self), self.figure())

    def write_report(self, path: str | Path, *, baseline: "Results | None" = None) -> Path:
        """Write one self-contained HTML file with the figures, replacing it if it exists; return its path.

        Args:
            path: of the file.
            baseline: another study, whose best and median are drawn in the figure of progress, too.

        Raises:
            UsageError: the baseline has another objective.
        """
        from phyla.report import evaluation_sections, study_sections, write_pages
        from phyla.study.results.evaluations import ROWS
        from phyla.study.results.pages import pages_of

        if baseline is not None and (baseline.metric, baseline.maximize) != (self.metric, self.maximize):
            raise UsageError(
                f"study {baseline.name!r} is no baseline of {self.name!r}: it selects for "
                f"'{baseline.aim.description}', not '{self.aim.description}'"
            )
        pages, data = pages_of(self), self.data()
        sections = [*study_sections(data, None if baseline is None else baseline.data())]
        if self.has_suites:
            sections += evaluation_sections(self.evaluations().data(last=ROWS))
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


def _read_runs(reader: "Reader") -> Iterator[Attempt]:
    after = 0
    while tasks := reader.eval_jobs(after=after, limit=ROWS):
        for task in tasks:
            if task.started_at is not None and task.ended_at is not None:
                # Of which only the times and the worker are looked at.
                yield Attempt(
                    job=task.id,
                    token=task.token,
                    study=task.study,
                    worker=task.worker or "",
                    state=AttemptState.COMPLETED,
                    claimed_at=task.started_at,
                    expires_at=task.ended_at,
                    ended_at=task.ended_at,
                )
        after = tasks[-1].id


def trial_row(trial: TrialRecord) -> dict[str, Any]:
    """Return a trial as one flat row."""
    row = {name: getattr(trial, RENAMED.get(name, name)) for name in COLUMNS}
    for name in ("decision", "stop_reason"):
        row[name] = None if row[name] is None else describe(row[name])
    row |= {f"params.{name}": value for name, value in trial.params.items()}
    row |= {f"metrics.{name}": value for name, value in trial.metrics.items()}
    if trial.criteria is not None:
        # What several metrics were judged as, which may be means of what was reported.
        row |= {f"criteria.{name}": value for name, value in trial.criteria.values.items()}
        row["infeasible"] = trial.criteria.infeasible
    return row
