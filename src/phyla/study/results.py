"""What a study has found so far; read-only, and needs no training code."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from phyla.errors import StudyNotFound
from phyla.records import (
    Aim,
    Attempt,
    Cause,
    Checkpoint,
    CheckpointState,
    Json,
    Member,
    Report,
    StudyRecord,
    StudyState,
    TrialRecord,
)
from phyla.space import Params
from phyla.study.findings import Finding, findings
from phyla.study.opening import find_study, open_if_there
from phyla.study.places import Places, shown
from phyla.study.progress import Failures, Progress, best_of, lease_s, look
from phyla.study.replicates import Replicate, replicate_of
from phyla.study.rows import frame, trial_row

if TYPE_CHECKING:
    import pandas as pd

    from phyla.lineage import Lineage, Schedule
    from phyla.report import StudyData, TimeSpent
    from phyla.store import Reader, Store
    from phyla.study.evaluations import Evaluations


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class BestCheckpoint:
    """The checkpoint of the best trial.

    Attributes:
        name: its name in the study.
        path: its directory; read-only.
        step: age of the weights.
        digest: identity of its content.
        size_bytes: bytes of its files together.
        index: place within it, when it holds several models.
    """

    name: str
    path: Path
    step: int
    digest: str
    size_bytes: int
    index: int


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """The best trial of a study.

    Attributes:
        fitness: as measured on `checkpoint`.
        checkpoint: what it was measured on.
        params: the trial's hyperparameters; the whole path there is in `Results.schedule()`.
        metrics: last reported value of each metric.
        trial: id of the trial.
        member: index of its member.
        values: what it was judged by: the metrics that the objective names.
    """

    fitness: float
    checkpoint: BestCheckpoint
    params: Params
    metrics: Mapping[str, Any]
    trial: int
    member: int
    values: Mapping[str, float]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigChange:
    """One setting of a study that was changed while the study existed.

    Attributes:
        at: when, in seconds since the epoch.
        name: dotted name of the setting, such as `strategy.total_steps`.
        before: its value until then, as JSON.
        after: its value from then on.
    """

    at: float
    name: str
    before: Json
    after: Json


@final
class Results:
    """What a study has found so far. Every call reads the store anew.

    Args:
        store: where the study is remembered.
        study: the study.
        places: where its checkpoints are.
    """

    def __init__(self, store: "Store", study: StudyRecord, places: Places) -> None:
        self._store = store
        self._study = study
        self._places = places

    @property
    def name(self) -> str:
        """Name of the study."""
        return self._study.name

    @property
    def places(self) -> Places:
        """Where the study keeps its things."""
        return self._places

    def _reader(self) -> "AbstractContextManager[Reader]":
        return self._store.reader(self._study.id)

    def study(self) -> StudyRecord:
        """Return the study as it stands."""
        with self._reader() as reader:
            return reader.study()

    @property
    def state(self) -> StudyState:
        """Whether the study is running, stopped, completed or failed."""
        return self.study().state

    @property
    def aim(self) -> Aim:
        """What the study selects for."""
        return Aim.from_config(self._study.config)

    @property
    def metric(self) -> str:
        """Name of the fitness: a metric, or a formula of several."""
        return self.aim.name

    @property
    def maximize(self) -> bool:
        """Whether high values of the fitness are good."""
        return self.aim.maximize

    @property
    def replicate(self) -> Replicate | None:
        """Which replicate of which study this is; None if it is none."""
        return replicate_of(self._study.config)

    @property
    def lease_s(self) -> float:
        """Seconds a claim lasts unless renewed."""
        return lease_s(self._study.config)

    @property
    def best(self) -> Best | None:
        """The completed trial with the best fitness whose checkpoint is kept; None while there is none.

        With a Pareto objective the trial on the front that is best in the first goal.
        """
        found = self.front()
        return found[0] if found else None

    def front(self) -> list[Best]:
        """Return the trials on the Pareto front, best in the first goal first; of equal ones the earliest.

        The front is that of the trials whose checkpoints are kept. Without trade-offs it has one trial, the best.
        """
        with self._reader() as reader:
            found = [(trial, reader.checkpoint(trial.checkpoint or "")) for trial in best_of(reader, self.aim)]
        return [self._best(trial, row) for trial, row in found if row is not None]

    def _best(self, trial: TrialRecord, row: Checkpoint) -> Best:
        assert trial.fitness is not None
        return Best(
            fitness=trial.fitness,
            checkpoint=BestCheckpoint(
                name=row.name,
                path=self._places.checkpoints(self.name) / row.name,
                step=row.step,
                digest=row.digest,
                size_bytes=row.size_bytes,
                index=trial.checkpoint_index,
            ),
            params=Params.of_flat(dict(trial.params)),
            metrics=trial.metrics,
            trial=trial.id,
            member=trial.member,
            values={self.metric: trial.fitness} if trial.criteria is None else trial.criteria.values,
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
        with self._reader() as reader:
            return list(reader.trials())

    def members(self) -> list[Member]:
        """Return all members by index."""
        with self._reader() as reader:
            return list(reader.members())

    def attempts(self) -> list[Attempt]:
        """Return all attempts by trial and token."""
        with self._reader() as reader:
            return list(reader.trial_attempts())

    def checkpoints(self) -> list[Checkpoint]:
        """Return all checkpoints, deleted ones too."""
        with self._reader() as reader:
            return list(reader.checkpoints())

    def damaged(self) -> list[Checkpoint]:
        """Return the checkpoints whose files are not what was committed, oldest first; see their `damage`."""
        with self._reader() as reader:
            return list(reader.damaged_checkpoints())

    def reports(self, trial: int) -> list[Report]:
        """Return what a trial reported, in order."""
        with self._reader() as reader:
            return list(reader.reports(trial))

    def counts(self) -> dict[str, int]:
        """Return how many training trials are in each state."""
        with self._reader() as reader:
            return reader.counts()

    def progress(
        self, choose: Callable[[Sequence[Member]], Iterable[Member]] = lambda members: members
    ) -> Progress:
        """Return how far the study is.

        Args:
            choose: the members whose trials are wanted; by default all.
        """
        with self._reader() as reader:
            return look(reader, choose)

    def failures(self, since: float) -> Callable[[], list[Attempt]]:
        """Return a function that tells, at each call, the attempts that failed since the call before.

        Args:
            since: what ended before this time is not told, in seconds since the epoch.
        """
        told = Failures(since)

        def new() -> list[Attempt]:
            with self._reader() as reader:
                return told.new(reader)

        return new

    def causes(self, trials: Iterable[TrialRecord]) -> dict[int, Cause]:
        """Return what training raised last in each of these trials, by id, where it raised anything."""
        with self._reader() as reader:
            raised = {
                trial.id: [attempt.cause for attempt in reader.attempts(trial.id) if attempt.cause is not None]
                for trial in trials
            }
        return {trial: causes[-1] for trial, causes in raised.items() if causes}

    def findings(self) -> list[Finding]:
        """Return what is probably wrong although nothing raised, such as weights that nobody loads."""
        with self._reader() as reader:
            return findings(reader)

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
                raise StudyNotFound(
                    f"study {self.name!r} has no completed trial that is feasible and has a finite fitness yet"
                )
            trial = best.trial
        from phyla.lineage import Schedule

        ancestry: list[TrialRecord] = []
        with self._reader() as reader:
            current: int | None = trial
            while current is not None:
                try:
                    ancestry.append(reader.trial(current))
                except KeyError:
                    raise StudyNotFound(f"study {self.name!r} has no trial {current}") from None
                current = ancestry[-1].parent
        return Schedule.along(reversed(ancestry))

    def evaluations(self) -> "Evaluations":
        """Return what the suites have found on the study's checkpoints.

        Raises:
            StudyNotFound: the study has no suites.
        """
        from phyla.study.evaluations import evaluations_of

        return evaluations_of(self._store, self.name, self._places)

    @property
    def has_suites(self) -> bool:
        """Whether the study's checkpoints are evaluated."""
        return bool(self._study.config.get("suites"))

    def evaluating(self) -> list[tuple[float, float]]:
        """Return when each eval task of the study ran: begin and end of its newest attempt, in seconds."""
        with self._reader() as reader:
            return [
                (task.started_at, task.ended_at)
                for task in reader.eval_jobs()
                if task.started_at is not None and task.ended_at is not None
            ]

    def time_spent(self) -> "TimeSpent":
        """Return where the time of its workers went: seconds by phase."""
        from phyla.report import time_spent

        return time_spent(self.attempts(), self.evaluating())

    def data(self) -> "StudyData":
        """Return everything the figures and the report show."""
        from phyla.report import StudyData

        evaluating = self.evaluating()
        with self._reader() as reader:
            live = {
                row.name: shown(self._places.checkpoints(self.name) / row.name)
                for row in reader.checkpoints()
                if row.state is CheckpointState.LIVE
            }
            return StudyData(
                study=reader.study(),
                members=tuple(reader.members()),
                trials=tuple(reader.trials()),
                attempts=tuple(reader.trial_attempts()),
                aim=self.aim,
                checkpoint_paths=live,
                damaged=tuple(reader.damaged_checkpoints()),
                evaluating=evaluating,
            )

    def write_report(self, path: str | Path) -> Path:
        """Write one self-contained HTML file with the figures; return its path.

        Args:
            path: the file; it is replaced if it exists.
        """
        from phyla.report import write_report
        from phyla.study.evaluations import ROWS

        evaluation = self.evaluations().data(last=ROWS) if self.has_suites else None
        return write_report(self.data(), Path(path), evaluation=evaluation)

    def dataframe(self) -> "pd.DataFrame":
        """Return one row per trial; hyperparameters as `params.*`, metrics as `metrics.*`.

        Raises:
            ImportError: pandas is not installed; `pip install "phyla[pandas]"`.
        """
        return frame(map(trial_row, self.trials()), "created_at", "started_at", "ended_at")


def load_study(
    name: str,
    *,
    home: str | Path | None = None,
    storage: str | None = None,
    checkpoints: str | Path | None = None,
) -> Results:
    """Open a study to read its results; needs no training code and changes nothing.

    Args:
        name: name of the study.
        home: directory where it lives; by default `.phyla` or the environment's.
        storage: URL of its store, if that is not in the home.
        checkpoints: directory of all studies' checkpoints, if that is not in the home.

    Raises:
        StudyNotFound: there is no such study there.
        StoreError: the database failed.
    """
    places = Places.of(home, storage, checkpoints)
    store, study = find_study(name, places)
    return Results(store, study, places)


def list_studies(
    *,
    home: str | Path | None = None,
    storage: str | None = None,
    checkpoints: str | Path | None = None,
) -> list[Results]:
    """Open all studies of a store to read their results, oldest first; a SQLite file that is missing has none.

    Watched directories and studies are not among them. Where the studies are, is said as for `load_study`.

    Raises:
        StoreError: the database failed.
    """
    places = Places.of(home, storage, checkpoints)
    store = open_if_there(places)
    if store is None:
        return []
    return [Results(store, study, places) for study in store.studies() if not study.watched]
