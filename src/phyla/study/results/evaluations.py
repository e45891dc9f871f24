"""The evaluation results of a run; read-only, and needs no training or evaluation code."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, final

from phyla import plugins, queries
from phyla.checkpoints import RemotePlace, is_there, local_copy, place_of
from phyla.errors import ConfigurationError, StateError, StudyNotFound
from phyla.evaluation import Cell, CellStatus, Estimate, GroupValues, Lag, Point, SuiteOutline
from phyla.evaluation.alarms import Regressions
from phyla.evaluation.matrix import cell, current_tasks, group_values
from phyla.evaluation.points import cell_points, group_points
from phyla.evaluation.suite import outlines
from phyla.queries import EvaluatedCheckpoint, GroupResults, every
from phyla.records import (
    Checkpoint,
    EvalEvent,
    Group,
    GroupState,
    StudyKind,
    StudyRecord,
    StudyState,
    Waiting,
)
from phyla.study.places import Places, list_names
from phyla.validation import look_up

if TYPE_CHECKING:
    from phyla.evaluation.paired import ModelComparison
    from phyla.integrations.harness_results import ModelResults
    from phyla.report import EvaluationData
    from phyla.report.style import Figure
    from phyla.store import Store

PAGE = 200
"""Checkpoints whose evaluations are read in one transaction."""
ROWS = 1000
"""Records that are read in one transaction where they are all that is read."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class BestEvaluation:
    """The best checkpoint of a suite."""

    suite: str
    metric: str  # the aggregate that the suite's objective names
    value: float
    stderr: float | None  # its standard error; None if it is not known
    values: dict[str, Estimate]
    checkpoint: str
    location: Path | RemotePlace  # where it is
    seen: Checkpoint  # what the store knows of it
    step: int  # age of the weights; -1 when it is not known
    branch: int  # 0, and one more each time training was rewound
    index: int  # place within the checkpoint, when it holds several models
    trial: int | None  # the trial that wrote it, in a study
    gone: bool  # whether the checkpoint has vanished, or was collected, since

    @property
    def path(self) -> Path:
        """Where it is read, a directory or a file; of one on an object store a copy, downloaded if need be."""
        if isinstance(self.location, RemotePlace) and self.seen.path:
            from phyla.watcher.snapshots import Copies

            return Copies(self.seen, self.location.cache).path(self.seen)
        return local_copy(self.location, None)

    @property
    def where(self) -> str:
        """Its path, or its URL, as text."""
        return str(self.location)


class MatrixRow(NamedTuple):
    """A checkpoint, the outcome of every eval task on it, and the aggregates of its groups."""

    seen: Checkpoint
    cells: list[Cell]
    values: list[GroupValues]


class NewestEvaluations(NamedTuple):
    """The aggregates of the newest checkpoints, the regressions among them, and the member of each trial."""

    values: list[GroupValues]
    regressions: list[EvalEvent]
    members: dict[int, int]


@final
class Evaluations:
    """The evaluation results of the checkpoints of a study or of a watched directory.

    Every call reads the store again, page by page: each checkpoint is consistent, and a
    history of any length needs little memory.

    Attributes:
        name: name of the run; a study's is called like the study.
        places: where its files are.
    """

    def __init__(self, store: "Store", run: StudyRecord, places: Places) -> None:
        self._store = store
        self._run = run
        self.places = places
        self.name = run.name

    @property
    def run(self) -> StudyRecord:
        """The run's current record."""
        return self._store.find_study(self._run.name) or self._run

    @property
    def state(self) -> str:
        """The run's state."""
        return self.run.state.value

    @property
    def suites(self) -> tuple[SuiteOutline, ...]:
        """The suites of its configuration, without their functions."""
        return outlines(self.run.config)

    def suite(self, name: str) -> SuiteOutline:
        """Return a suite by name.

        Raises:
            ConfigurationError: there is none of that name.
        """
        return look_up("suite", name, {suite.name: suite for suite in self.suites})

    # Records

    def checkpoints(self) -> Iterator[Checkpoint]:
        """Yield all registered checkpoints, oldest first, including gone and quarantined ones."""
        return every(self._store, self._run.id, queries.seen)

    def groups(self, suite: str | None = None) -> Iterator[Group]:
        """Yield evaluation groups by id; of one suite, or all."""
        return every(self._store, self._run.id, queries.groups, suite=suite)

    def notes(self) -> list[EvalEvent]:
        """Return the events that are stored: quarantined checkpoints and the like, oldest first."""
        # Former versions stored regressions.
        events = self._store.look(self._run.id, queries.events)
        return [event for event in events if event.kind != "regression"]

    def events(self) -> list[EvalEvent]:
        """Return `notes`, and the regressions that follow from all results, oldest first."""
        return sorted([*self.notes(), *self.regressions().events()], key=lambda event: event.created_at)

    def regressions(self) -> Regressions:
        """Return what is watched for regressions, with all results so far."""
        regressions = Regressions(self.run, self._members())
        self.read_into(regressions)
        return regressions

    def read_into(self, regressions: Regressions, ids: Sequence[int] | None = None) -> None:
        """Let `regressions` know what was measured on all checkpoints, or some by id."""
        for row in self._rows(ids=ids):
            regressions.read(row.cells)

    def retry(self) -> int:
        """Let workers retry evaluations that failed for good; return how many there are.

        Raises:
            StateError: no process evaluates it any more.
        """
        from phyla.configuration import suites_from
        from phyla.controller import sightings_of

        run = self.run
        if run.state not in (StudyState.RUNNING, StudyState.DRAINING):
            problem = f"{run.name!r} is {run.state}, so nothing can be retried now"
            raise StateError(f"{problem}; watch or run it again, which retries failed evaluations")
        return sightings_of(self._store, run, suites_from(run.config, plugins.absent)).retry()

    # The matrix

    def rows_of(self, ids: Sequence[int]) -> Iterator[MatrixRow]:
        """Yield the rows of some checkpoints by id."""
        return self._rows(ids=ids)

    def cells(self, suite: str | None = None, *, last: int | None = None) -> Iterator[Cell]:
        """Yield the outcome of every eval task, of all suites or one, on all checkpoints or the `last`, by age."""
        for row in self._rows(suite, last=last):
            yield from row.cells

    def values(self, suite: str, *, last: int | None = None) -> Iterator[GroupValues]:
        """Yield the aggregates of a suite on all checkpoints or the `last`, by age; some are partial."""
        for row in self._rows(suite, last=last, decode=False):
            yield from row.values

    def best(self, suite: str) -> BestEvaluation | None:
        """Return the best checkpoint of a suite; None before a group is complete.

        Raises:
            ConfigurationError: there is no such suite, or it has no objective.
        """
        outline = self.suite(suite)
        if outline.objective is None:
            raise ConfigurationError(
                f"suite {suite!r} has no objective, so it has no best checkpoint; give it an objective, such as "
                'objective=phyla.Maximize("accuracy_mean")'
            )
        best = self._store.look(self._run.id, queries.in_use, [suite])
        if suite not in best.best:
            return None
        seen = best.checkpoints[suite]
        values = group_values(seen, best.best[suite]).values
        if outline.objective not in values:
            raise ConfigurationError(
                f"the best checkpoint of suite {suite!r} has no aggregate {outline.objective!r}, which its "
                f"objective names now; it has {', '.join(values) or 'none'}"
            )
        # A study's checkpoint is in its directory; others are a snapshot or the original.
        known = self._run.config.get("checkpoints")
        path: Path | RemotePlace
        path = (
            place_of(str(known), self.places.home)
            if known
            else self.places.checkpoints(self.name, self._run.config)
        ) / seen.name
        if seen.path:
            path = place_of(seen.path, self.places.home)
            if isinstance(path, Path) and not is_there(path) and seen.snapshot:
                from phyla.watcher.snapshots import snapshot_path

                # The home was moved, and no process has watched since.
                moved = snapshot_path(self.places.folder("snapshots", self.name), seen)
                path = moved if is_there(moved) else path
            if isinstance(path, Path) and not is_there(path) and len(seen.paths) == 1 and self._run.location:
                path = Path(self._run.location) / seen.paths[0]
        measured = values[outline.objective]
        return BestEvaluation(
            suite=suite,
            metric=outline.objective,
            value=measured.value,
            stderr=measured.stderr,
            values=dict(values),
            checkpoint=seen.name,
            location=path,
            seen=seen,
            step=seen.step,
            branch=seen.branch,
            index=seen.index,
            trial=seen.trial,
            gone=not (seen.usable if seen.path and isinstance(path, RemotePlace) else is_there(path)),
        )

    def model_results(self, checkpoint: str = "newest") -> "ModelResults":
        """Return all results on one checkpoint, with the samples that eval tasks saved.

        Args:
            checkpoint: its name or its step, in the newest branch that has it, or `200@0` in another one; or
                `newest`, the newest one with a result, or `best`.

        Raises:
            UsageError: there is no such checkpoint.
        """
        from phyla.study.results.pages.models import read_model

        return read_model(self, checkpoint)

    def compare_models(self, against: str, checkpoint: str = "newest") -> "ModelComparison":
        """Return how one checkpoint differs from another, eval task by eval task, each in its main metric.

        Samples that eval tasks saved, or seeds, are compared one by one.

        Args:
            against: another checkpoint, as in `model_results`; or a file of results in the format of
                lm-evaluation-harness.
            checkpoint: the one that is compared.

        Raises:
            UsageError: there is no such checkpoint or file, or they have no eval task in common.
        """
        from phyla.study.results.pages.models import compare

        return compare(self, checkpoint, against)

    def lag(self) -> list[Lag]:
        """Return how far each suite is behind: newest checkpoint against newest complete one."""
        return self._store.look(self._run.id, queries.lags, [suite.name for suite in self.suites])

    def waiting(self) -> Sequence[Waiting]:
        """Return how many eval tasks that may start wait for a worker with GPUs or a label that they ask for."""
        return self._store.look(self._run.id, queries.waiting)

    def summary(self, suite: str | None = None) -> dict[str, int]:
        """Return how many cells of the matrix have each status; repetitions do not count."""
        rows = self._rows(suite, decode=False)
        counts = Counter(cell.status for row in rows for cell in row.cells if cell.replicate == 0)
        return {status.value: counts[status] for status in CellStatus if counts[status]}

    # Projections

    def points(self, suite: str | None = None) -> Iterator[Point]:
        """Yield every number that was measured, of all suites or one, as all exporters write them.

        They come by branch, member, index and step, and eval tasks before the aggregates of their suite.
        """
        members = self._members()
        order = sorted(
            (
                seen.branch,
                members.get(seen.trial or 0, -1),
                seen.index,
                seen.step if seen.step >= 0 else seen.number,
                seen.id,
            )
            for seen in self.checkpoints()
        )
        for row in self._rows(suite, ids=[key[-1] for key in order]):
            yield from _points(row, members.get(row.seen.trial or 0))

    def points_of(self, group: Group, member: int | None = None) -> Iterator[Point]:
        """Yield the measurements of one evaluation group."""
        suites = [suite for suite in self.suites if suite.name == group.suite] or [SuiteOutline(name=group.suite)]
        (checkpoint,) = self._store.look(self._run.id, queries.evaluated, [group.seen])
        row = _row(checkpoint, suites, former=False, decode=True)
        return (point for point in _points(row, member) if point.replicate == group.replicate)

    def _members(self) -> dict[int, int]:
        """Return the member of every trial of a study."""
        if self._run.kind is StudyKind.DIRECTORY:
            return {}
        trials = every(self._store, self._run.source or self._run.id, queries.trials)
        return {trial.id: trial.member for trial in trials}

    def newest(self, last: int) -> "NewestEvaluations":
        """Return the aggregates of the `last` checkpoints, and the regressions among them."""
        rows = [*self._rows(last=last)]
        members = self._members_of(row.seen for row in rows)
        regressions = Regressions(self.run, members)
        for row in rows:
            regressions.read(row.cells)
        values = [values for row in rows for values in row.values]
        return NewestEvaluations(values, regressions.events(), members)

    def _members_of(self, checkpoints: Iterable[Checkpoint]) -> dict[int, int]:
        """Return the member of each trial that wrote one of some checkpoints."""
        trials = sorted({seen.trial for seen in checkpoints if seen.trial is not None})
        source = self._run.source or self._run.id
        return {trial.id: trial.member for trial in self._store.look(source, queries.trials, ids=trials)}

    def data(self, *, last: int | None = None) -> "EvaluationData":
        """Return what the figures and the report show, of all checkpoints or the `last` ones."""
        from phyla.report import EvaluationData
        from phyla.report.columns import waits_of

        cells: list[Cell] = []
        values: list[GroupValues] = []
        for row in self._rows(last=last):
            # Raw metrics may be large, and are not drawn.
            cells += [replace(cell, metrics={}) for cell in row.cells]
            values += row.values
        return EvaluationData(
            run=self.run,
            suites=self.suites,
            cells=tuple(cells),
            values=tuple(values),
            waits=waits_of(self.groups()),
            events=tuple(self.events()),
            lag=tuple(self.lag()),
            members=self._members_of(cell.seen for cell in cells),
            now=self._store.look(self._run.source or self._run.id, queries.summary).now,
        )

    def figure(self, name: str = "aggregates") -> "Figure":
        """Return one of `phyla.report.EVALUATION_FIGURES`, such as "aggregates" or "matrix"."""
        from phyla.report import EVALUATION_FIGURES

        return look_up("figure", name, EVALUATION_FIGURES)(self.data(last=ROWS))

    def write_tensorboard(self, directory: str | Path) -> int:
        """Write event files for TensorBoard, replacing those of an earlier call; return how many points they have.

        Raises:
            ImportError: tensorboardX is not installed; `pip install "phyla[tensorboard]"`.
            UsageError: the directory cannot be written, or holds files of that name that are not ours.
        """
        from phyla.integrations.tensorboard import write_tensorboard

        return write_tensorboard(self.points(), self.name, Path(directory))

    def write_report(self, path: str | Path) -> Path:
        """Write one self-contained HTML file with the figures, replacing it if it exists; return its path."""
        from phyla.report import write_pages
        from phyla.study.results.pages.evaluations import evaluation_history, evaluations_page, run_page

        pages, data = [run_page(self, pictures=True), evaluations_page(self)], self.data(last=ROWS)
        return write_pages(path, pages, evaluation_history(data), data.now)

    def _rows(
        self,
        suite: str | None = None,
        *,
        last: int | None = None,
        ids: Sequence[int] | None = None,
        decode: bool = True,
    ) -> Iterator[MatrixRow]:
        """Yield rows of the matrix page by page: those of all checkpoints, of the `last` ones, or of some by id.

        Without a suite, also what suites left behind that the study no longer has; without `decode` only what
        became of each eval task, not what was measured.
        """
        wanted = self.suites if suite is None else (self.suite(suite),)
        if ids is None:
            newest = (
                self.checkpoints() if last is None else self._store.look(self._run.id, queries.newest_seen, last)
            )
            ids = [seen.id for seen in newest]
        for start in range(0, len(ids), PAGE):
            chosen = ids[start : start + PAGE]
            for checkpoint in self._store.look(self._run.id, queries.evaluated, chosen, results=decode):
                yield _row(checkpoint, wanted, former=suite is None, decode=decode)


def _points(row: MatrixRow, member: int | None) -> Iterator[Point]:
    for entry in row.cells:
        yield from cell_points(entry, member)
    for values in row.values:
        # Cells of this group, which has one suite and one replicate.
        yield from group_points(values, [entry for entry in row.cells if entry.group == values.group], member)


def _row(
    checkpoint: EvaluatedCheckpoint, wanted: Sequence[SuiteOutline], *, former: bool, decode: bool
) -> MatrixRow:
    seen, suites = checkpoint.seen, {suite.name: suite for suite in wanted}
    for name in [outcome.group.suite for outcome in checkpoint.groups] if former else ():
        suites.setdefault(name, SuiteOutline(name=name))
    row = MatrixRow(seen, [], [])
    for suite in suites.values():
        own: Sequence[GroupResults | None] = [
            outcome for outcome in checkpoint.groups if outcome.group.suite == suite.name
        ]
        for outcome in own or (None,):
            group, tasks = (None, {}) if outcome is None else (outcome.group, current_tasks(outcome.jobs))
            # An eval task that the suite no longer has still has its results.
            for name in dict.fromkeys((*(task.name for task in suite.tasks), *tasks)):
                shards = tasks.get(name, [])
                if decode and outcome is not None and shards:
                    results = outcome.results.get(shards[0].identity, ())
                    row.cells.append(cell(seen, group, suite, name, shards, results, plugins.loaded_class))
                else:
                    row.cells.append(cell(seen, group, suite, name, shards))
                if outcome is not None and row.cells[-1].status is CellStatus.RUNNING:
                    claimed_at = min(
                        run.claimed_at for run in outcome.running if run.job in {shard.id for shard in shards}
                    )
                    row.cells[-1] = replace(row.cells[-1], running_s=checkpoint.now - claimed_at)
            if group is not None and (group.values or group.state in (GroupState.COMPLETE, GroupState.PARTIAL)):
                row.values.append(group_values(seen, group))
    return row


def evaluations_of(store: "Store", name: str, places: Places) -> Evaluations:
    """Return the evaluation results of a study of any kind."""
    study = store.find_study(name)
    if study is None:
        names = list_names(known for known in store.studies() if outlines(known.config))
        raise StudyNotFound(f"there is no run {name!r} in {store.url}; runs that are evaluated: {names}")
    evaluated = study.watched or bool(study.config.get("suites"))
    if not (evaluated or store.look(study.id, queries.seen, limit=1)):
        raise StudyNotFound(
            f"study {name!r} has no suites, so nothing was evaluated; give it some: Study(..., suites=[...])"
        )
    return Evaluations(store, study, places)
