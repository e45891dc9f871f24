"""What the evaluation of a run has found so far; read-only, and needs no training or evaluation code."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, final

from phyla.errors import ConfigurationError, StudyNotFound
from phyla.evaluation import (
    Cell,
    CellStatus,
    Estimate,
    GroupValues,
    Lag,
    Point,
    SuiteOutline,
    array_point,
    cell_points,
    group_points,
    group_values,
    lag,
    outlines,
)
from phyla.records import EvalEvent, EvalJob, Group, Seen, StudyKind, StudyRecord, TrialRecord
from phyla.study.opening import open_existing
from phyla.study.places import Places
from phyla.study.rows import MatrixRow, cell_row, flat, frame, matrix_rows

if TYPE_CHECKING:
    import pandas as pd

    from phyla.report import EvaluationData
    from phyla.store import Reader, Store

Row = TypeVar("Row", Seen, Group, TrialRecord)

ROWS = 1000
"""Records that are read in one transaction where they are all that is read."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class BestEvaluation:
    """The best checkpoint of a suite.

    Attributes:
        suite: name of the suite.
        metric: the aggregate that the suite's objective names.
        value: what it was measured as.
        stderr: its standard error; None if it is not known.
        values: all aggregates.
        checkpoint: name of the checkpoint.
        path: where it is read; a directory or a file.
        step: age of the weights; -1 when it is not known.
        branch: 0, and one more each time training was rewound.
        index: place within the checkpoint, when it holds several models.
        trial: the trial that wrote it, in a study.
        gone: whether the checkpoint has vanished, or was collected, since.
    """

    suite: str
    metric: str
    value: float
    stderr: float | None
    values: dict[str, Estimate]
    checkpoint: str
    path: Path
    step: int
    branch: int
    index: int
    trial: int | None
    gone: bool


@final
class Evaluations:
    """What the evaluation of a study's checkpoints, or of a watched directory's, has found so far.

    Every call reads the store anew, page by page: what it yields is consistent for each checkpoint, and a
    history of any length needs little memory.

    Args:
        store: where the run is remembered.
        run: the run.
        places: where saved arrays and a study's checkpoints are.
    """

    def __init__(self, store: "Store", run: StudyRecord, places: Places) -> None:
        self._store = store
        self._run = run
        self._places = places

    def close(self) -> None:
        """Close the store."""
        self._store.close()

    @property
    def name(self) -> str:
        """Name of the run; a study's is called like the study."""
        return self._run.name

    @property
    def run(self) -> StudyRecord:
        """The run as it stands."""
        return self._store.find_study(self._run.name) or self._run

    @property
    def state(self) -> str:
        """How it stands."""
        return self.run.state.value

    @property
    def suites(self) -> tuple[SuiteOutline, ...]:
        """The suites, as its configuration has them, without their functions."""
        return outlines(self.run.config)

    def suite(self, name: str) -> SuiteOutline:
        """Return a suite by name.

        Raises:
            ConfigurationError: there is none of that name.
        """
        known = self.suites
        for suite in known:
            if suite.name == name:
                return suite
        raise ConfigurationError(
            f"run {self.name!r} has no suite {name!r}; there are: {', '.join(one.name for one in known) or 'none'}"
        )

    # Records

    def checkpoints(self) -> Iterator[Seen]:
        """Yield the checkpoints that were seen, oldest first; those that are gone or quarantined too."""
        return self._paged(lambda reader, after: reader.all_seen(after=after, limit=ROWS))

    def groups(self, suite: str | None = None) -> Iterator[Group]:
        """Yield evaluation groups by id; of one suite, or all."""
        return self._paged(lambda reader, after: reader.groups(suite=suite, after=after, limit=ROWS))

    def _paged(self, read: "Callable[[Reader, int], Sequence[Row]]", study: int | None = None) -> "Iterator[Row]":
        """Yield rows by id, with one transaction for each page."""
        after = 0
        while True:
            with self._store.reader(study or self._run.id) as reader:
                page = read(reader, after)
            if not page:
                return
            yield from page
            after = page[-1].id

    def eval_tasks(self) -> list[EvalJob]:
        """Return all eval tasks, and the aggregations of their groups, by id."""
        with self._store.reader(self._run.id) as reader:
            return list(reader.eval_jobs())

    def events(self) -> list[EvalEvent]:
        """Return what a person should know: regressions, quarantined checkpoints and the like, oldest first."""
        with self._store.reader(self._run.id) as reader:
            return list(reader.events())

    # The matrix

    def cells(self, suite: str | None = None, *, last: int | None = None) -> Iterator[Cell]:
        """Yield what became of every eval task on every checkpoint, by checkpoint, oldest first.

        Args:
            suite: only this one's; by default all.
            last: only those of so many newest checkpoints.

        Raises:
            ConfigurationError: there is no such suite.
        """
        for row in self._rows(suite, last=last):
            yield from row.cells

    def values(self, suite: str, *, last: int | None = None) -> Iterator[GroupValues]:
        """Yield the aggregates of a suite on every checkpoint that has them, oldest first.

        Those of partial groups are marked.

        Args:
            suite: name of the suite.
            last: only those of so many newest checkpoints.

        Raises:
            ConfigurationError: there is no such suite.
        """
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
                f"suite {suite!r} has no objective, so none of its checkpoints is the best; give it one, such as "
                'objective=phyla.Maximize("accuracy_mean")'
            )
        with self._store.reader(self._run.id) as reader:
            group = reader.best_group(suite)
            seen = None if group is None else reader.seen(group.seen)
        if group is None or seen is None:
            return None
        found = group_values(seen, group).values
        if outline.objective not in found:
            raise ConfigurationError(
                f"the best checkpoint of suite {suite!r} has no aggregate {outline.objective!r}, which its "
                f"objective names now; it has {', '.join(found) or 'none'}"
            )
        path = self._path(seen)
        return BestEvaluation(
            suite=suite,
            metric=outline.objective,
            value=found[outline.objective].value,
            stderr=found[outline.objective].stderr,
            values=dict(found),
            checkpoint=seen.name,
            path=path,
            step=seen.step,
            branch=seen.branch,
            index=seen.index,
            trial=seen.trial,
            gone=not path.exists(),
        )

    def _path(self, seen: Seen) -> Path:
        """Return where a checkpoint is: a study's in its directory, another as its snapshot or the original."""
        if not seen.path:
            known = self._run.config.get("checkpoints")
            return (Path(str(known)) if known else self._places.checkpoints(self.name)) / seen.name
        path = Path(seen.path)
        if not path.exists() and len(seen.paths) == 1 and self._run.location:
            return Path(self._run.location) / seen.paths[0]
        return path

    def lag(self) -> list[Lag]:
        """Return how far each suite is behind: newest checkpoint against newest complete one."""
        found = []
        for suite in self.suites:
            groups = self.groups(suite.name)
            with self._store.reader(self._run.id) as reader:
                now = reader.now()
            found.append(lag(suite.name, groups, self._seen, now))
        return found

    def _seen(self, seen: int) -> Seen:
        with self._store.reader(self._run.id) as reader:
            return reader.seen(seen)

    def summary(self, suite: str | None = None) -> dict[str, int]:
        """Return how many cells of the matrix have each status; repetitions do not count.

        Raises:
            ConfigurationError: there is no such suite.
        """
        counts = {status.value: 0 for status in CellStatus}
        for row in self._rows(suite, decode=False):
            for one in row.cells:
                counts[one.status] += one.replicate == 0
        return {status: count for status, count in counts.items() if count}

    # Projections

    def points(self, suite: str | None = None, *, arrays: bool = False) -> Iterator[Point]:
        """Yield every number and histogram that was measured, by branch, member, index and step.

        Eval tasks come before the aggregates of their suite. This is what all exporters write.

        Args:
            suite: only this one's; by default all.
            arrays: also saved arrays, as histograms of their numbers.

        Raises:
            ConfigurationError: there is no such suite.
        """
        members = self._members()
        order = sorted(
            (seen.branch, members.get(seen.trial or 0, -1), seen.index, _place(seen), seen.id)
            for seen in self.checkpoints()
        )
        for row in self._rows(suite, ids=[key[-1] for key in order]):
            member = members.get(row.seen.trial or 0)
            for one in row.cells:
                yield from cell_points(one, member)
                if arrays:
                    yield from self._arrays(one, member)
            for values in row.values:
                # Those of one group, which has one suite and one replicate.
                yield from group_points(values, [one for one in row.cells if one.group == values.group], member)

    def _arrays(self, one: Cell, member: int | None) -> Iterator[Point]:
        import numpy as np

        # Results of other runs may be among them, so files are named below the outputs of all runs.
        own = self._run.config.get("outputs")
        outputs = (Path(str(own)) if own else self._places.outputs(self.name)).parent
        for name, files in one.files.items():
            paths = [outputs / file for file in files if file.endswith(".npy")]
            if not paths or not all(path.exists() for path in paths):
                continue
            whole = np.concatenate([np.load(path, allow_pickle=False).ravel() for path in paths])
            point = array_point(one, name, whole, member)
            if point is not None:
                yield point

    def _members(self) -> dict[int, int]:
        """Return the member of every trial of a study."""
        if self._run.kind is StudyKind.DIRECTORY:
            return {}
        trials = self._paged(lambda reader, after: reader.trials(after=after, limit=ROWS), self._run.source)
        return {trial.id: trial.member for trial in trials}

    def dataframe(self, suite: str | None = None) -> "pd.DataFrame":
        """Return one row per checkpoint and eval task; measured values as `values.*`, errors as `stderr.*`.

        Args:
            suite: only this one's; by default all.

        Raises:
            ImportError: pandas is not installed; `pip install "phyla[pandas]"`.
            ConfigurationError: there is no such suite.
        """
        return frame((flat(cell_row(one)) for one in self.cells(suite)), "written_at", "evaluated_at")

    def data(self, *, last: int | None = None) -> "EvaluationData":
        """Return what the figures and the report show.

        Args:
            last: only so many newest checkpoints.
        """
        from phyla.report import EvaluationData

        cells: list[Cell] = []
        values: list[GroupValues] = []
        for row in self._rows(None, last=last):
            # What it was read from may be large, and is not drawn.
            cells += [replace(one, metrics={}) for one in row.cells]
            values += row.values
        with self._store.reader(self._run.id) as reader:
            now = reader.now()
        return EvaluationData(
            run=self.run,
            state=self.state,
            suites=self.suites,
            cells=tuple(cells),
            values=tuple(values),
            groups=tuple(self.groups()),
            events=tuple(self.events()),
            lag=tuple(self.lag()),
            members=self._members(),
            now=now,
        )

    def write_tensorboard(self, directory: str | Path, *, arrays: bool = False) -> int:
        """Write TensorBoard's event files, replacing those of an earlier call; return how many points they have.

        Args:
            directory: TensorBoard's log directory.
            arrays: also saved arrays, as histograms of their numbers.

        Raises:
            ImportError: tensorboardX is not installed; `pip install "phyla[tensorboard]"`.
            UsageError: the directory cannot be written, or holds files of that name that are not ours.
        """
        from phyla.integrations.tensorboard import write_tensorboard
        from phyla.settings import system_clock

        return write_tensorboard(self.points(arrays=arrays), self.name, Path(directory), now=system_clock())

    def write_report(self, path: str | Path) -> Path:
        """Write one self-contained HTML file with the figures of the evaluation; return its path.

        Args:
            path: the file; it is replaced if it exists.
        """
        from phyla.report import write_evaluation_report

        return write_evaluation_report(self.data(last=ROWS), Path(path))

    def _rows(
        self,
        suite: str | None,
        *,
        last: int | None = None,
        ids: Sequence[int] | None = None,
        decode: bool = True,
    ) -> Iterator[MatrixRow]:
        """Yield rows of the matrix: those of all checkpoints, of the newest ones, or of some by id."""
        wanted = self.suites if suite is None else (self.suite(suite),)
        if ids is None:
            ids = list(deque((seen.id for seen in self.checkpoints()), maxlen=last))
        return matrix_rows(self._store, self._run.id, ids, wanted, decode=decode, everything=suite is None)


def _place(seen: Seen) -> int:
    return seen.step if seen.step >= 0 else seen.number


def load_evaluations(
    name: str,
    *,
    home: str | Path | None = None,
    storage: str | None = None,
    checkpoints: str | Path | None = None,
) -> Evaluations:
    """Open what a study's suites, or a watched run, have found; needs no evaluation code and changes nothing.

    Args:
        name: name of the run; a study's is called like the study.
        home: directory where it lives; by default `.phyla` or the environment's.
        storage: URL of its store, if that is not in the home.
        checkpoints: directory of all studies' checkpoints, if that is not in the home.

    Raises:
        StudyNotFound: there is no such run there, or the study has no suites.
        StoreError: the database failed.
    """
    places = Places.of(home, storage, checkpoints)
    return evaluations_of(open_existing(f"run {name!r}", places), name, places)


def evaluations_of(store: "Store", name: str, places: Places) -> Evaluations:
    """Return what the suites of a study of any kind have found.

    Raises:
        StudyNotFound: there is no such study, or it has no suites.
    """
    found = store.find_study(name)
    if found is None:
        names = ", ".join(repr(known.name) for known in store.studies() if outlines(known.config)) or "none"
        raise StudyNotFound(f"there is no run {name!r} in {store.url}; runs that are evaluated: {names}")
    with store.reader(found.id) as reader:
        evaluated = found.watched or bool(found.config.get("suites")) or bool(reader.all_seen(limit=1))
    if not evaluated:
        raise StudyNotFound(
            f"study {name!r} has no suites, so nothing was evaluated; give it some: Study(..., suites=[...])"
        )
    return Evaluations(store, found, places)
