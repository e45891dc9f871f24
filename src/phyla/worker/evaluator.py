"""Runs eval tasks, and aggregates groups."""

import contextlib
import hashlib
import inspect
import os
import shutil
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, final

import numpy as np
from numpy.typing import NDArray

from phyla import plugins
from phyla.api import GroupResults, WorkClient
from phyla.errors import CheckpointError, ConfigurationError, EvaluationError, PhylaError, StoreError
from phyla.evaluation import (
    Comparison,
    Estimate,
    EvalTask,
    Suite,
    TaskResult,
    aggregate,
    compare,
    decode,
    encode,
    merged,
    suite_named,
)
from phyla.failpoints import failpoint
from phyla.machine import ClaimedEvaluation, Evaluated, EvaluationFailed
from phyla.records import EvalEvent, EvalResult, EvalTaskKind, Group, JsonObject, Seen, json_number
from phyla.settings import Clock
from phyla.worker.bindings import Bindings
from phyla.worker.commands import folder_of, run_command
from phyla.worker.evaluation import Evaluation, checkpoint_of

ERROR_CHARACTERS = 4000


class Sources(Protocol):
    """Where the bytes of checkpoints are."""

    def path(self, seen: Seen) -> Path:
        """Return where a checkpoint is read.

        Raises:
            CheckpointError: it is gone, or no longer what was seen.
        """
        ...

    def check(self, seen: Seen) -> None:
        """Make sure, after it was read, that it still is what was seen.

        Raises:
            CheckpointError: it is gone, or no longer what was seen.
        """
        ...


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatedRun:
    """What it takes to evaluate the checkpoints of one run.

    Attributes:
        suites: its suites, as they were when this process read them.
        sources: where its checkpoints are.
        outputs: directory of saved arrays and files; its parent is common to all runs of a store, since the
            ledger's entries are, too.
        bindings: where gin bindings come from.
        changed: tells whether it has other suites by now.
    """

    suites: tuple[Suite, ...]
    sources: Sources
    outputs: Path
    bindings: Bindings = field(default_factory=Bindings)
    changed: Callable[[], bool] = lambda: False


@final
@dataclass(frozen=True, slots=True)
class _Loaded:
    suite: str
    seen: int
    value: Any


@final
class Evaluator:
    """Runs one eval task after the other.

    Args:
        client: gives access to the ledger, for aggregations.
        run_of: tells what it takes to evaluate a run, by its id.
        work_root: directory for scratch.
        name: of the worker.
        clock: tells the time.
        timer: measures durations, in seconds.
        state: what the study's `setup(worker)` returned.
    """

    def __init__(
        self,
        client: WorkClient,
        run_of: Callable[[int], EvaluatedRun],
        *,
        work_root: Path,
        name: str,
        clock: Clock,
        timer: Callable[[], float],
        state: Any = None,
    ) -> None:
        self._client = client
        self._run_of = run_of
        self._work_root = work_root
        self._name = name
        self._clock = clock
        self._timer = timer
        self._state = state
        self._loaded: _Loaded | None = None
        self.current: Evaluation | None = None
        self.outdated = False
        """Whether the suites of a run changed since this process read them: it should be started anew."""

    @property
    def holding(self) -> int | None:
        """Id of the checkpoint that is loaded."""
        return None if self._loaded is None else self._loaded.seen

    def run(self, work: ClaimedEvaluation) -> Evaluated | EvaluationFailed | None:
        """Do one piece of work; None when evaluation code saw that it was asked to stop.

        Raises:
            StoreError: the database failed.
        """
        run = self._run_of(work.task.run)
        try:
            suite, task = _known(run, work)
            if task is None:
                return self._aggregate(work, run, suite)
            return self._evaluate(work, run, suite, task)
        except StoreError:
            raise
        except CheckpointError as error:
            self._loaded = None
            return _failed(work, str(error), gone=True)
        except _Unknown as error:
            if run.changed():
                self.outdated = True
                return None
            return _failed(work, str(error), retryable=False)
        except ConfigurationError as error:
            return _failed(work, f"{type(error).__name__}: {error}", retryable=False)
        except (Exception, SystemExit) as error:  # noqa: BLE001  # whatever evaluation code raises belongs to the eval task
            # What was loaded may be the cause.
            self._loaded = None
            return self._raised(work, run, error)

    def _raised(self, work: ClaimedEvaluation, run: EvaluatedRun, error: BaseException) -> EvaluationFailed:
        if work.task.kind is EvalTaskKind.EVALUATE:
            try:
                run.sources.check(work.seen)
            except CheckpointError as vanished:
                return _failed(work, str(vanished), gone=True)
        if isinstance(error, EvaluationError):
            return _failed(work, f"{type(error).__name__}: {error}")
        return _failed(work, "".join(traceback.format_exception(error))[-ERROR_CHARACTERS:])

    # Eval tasks

    def _evaluate(
        self, work: ClaimedEvaluation, run: EvaluatedRun, suite: Suite, task: EvalTask
    ) -> Evaluated | None:
        path = run.sources.path(work.seen)
        run.bindings.apply(suite.gin_files, ())
        loaded, load_s = self._load(suite, work.seen, path)
        run.bindings.apply(suite.gin_files, task.gin)
        label = f"{work.task.id}.{work.task.token}"
        outputs = run.outputs / label
        scratch = folder_of(self._work_root, work.task.id, work.task.token)
        evaluation = Evaluation(
            work.task,
            work.seen,
            suite=suite.name,
            path=path,
            config=task.config,
            seed=seed_of(task.seed, work.task.replicate),
            loaded=loaded,
            worker=self._state,
            outputs=outputs,
            work_root=scratch,
        )
        self.current = evaluation
        began = self._timer()
        try:
            with _removed(scratch), _removed_on_error(outputs):
                if task.command is not None:
                    run_command(task.command, evaluation, timeout_s=task.timeout_s)
                else:
                    task(evaluation)
                if evaluation.should_stop:
                    shutil.rmtree(outputs, ignore_errors=True)
                    return None
                duration_s = self._timer() - began
                if not evaluation.statistics and not evaluation.files:
                    raise ConfigurationError(
                        f"eval task {task.name!r} recorded nothing: call evaluation.record(...) or .save(...)"
                    )
                run.sources.check(work.seen)
                _flush(outputs)
        finally:
            self.current = None
        failpoint("evaluation.before_result")
        result = EvalResult(
            identity=work.seen.identity,
            task_identity=work.task.identity,
            replicate=work.task.replicate,
            shard=work.task.shard,
            shards=work.task.shards,
            run=work.task.run,
            statistics={name: encode(metric, plugins.reference) for name, metric in evaluation.statistics.items()},
            files={name: f"{run.outputs.name}/{label}/{file}" for name, file in evaluation.files.items()},
            source=_source_with_bindings(run, suite, task),
            duration_s=duration_s,
            load_s=load_s,
            worker=self._name,
            created_at=self._clock(),
        )
        return Evaluated(task=work.task.id, group=work.task.group, token=work.task.token, result=result)

    def _load(self, suite: Suite, seen: Seen, path: Path) -> tuple[Any, float]:
        """Return what the suite's `load` returned, now or for an eval task before, and how long it took now."""
        held = self._loaded
        if held is not None and (held.suite, held.seen) == (suite.name, seen.id):
            return held.value, 0.0
        self._loaded = None  # before the next one needs its memory
        began = self._timer()
        value = None if suite.load is None else suite.load(checkpoint_of(seen, path))
        self._loaded = _Loaded(suite.name, seen.id, value)
        return value, self._timer() - began

    # Groups

    def _aggregate(self, work: ClaimedEvaluation, run: EvaluatedRun, suite: Suite) -> Evaluated:
        found = self._client.group_results(work.group.id)
        results = task_results(suite, found, run.outputs.parent)
        complete = len(results) == len(suite.tasks)
        try:
            values = aggregate(suite.aggregates, results)
        except PhylaError:
            if complete:
                raise
            # A partial group: what needs the missing eval tasks cannot be said.
            values = {}
        events = self._changed_sources(work, run, suite, found)
        best = False
        former = None if suite.objective is None else self._client.best_group(suite.name, run=work.task.run)
        if suite.objective is not None and complete and work.group.replicate == 0:
            best = _is_better(suite, values, former)
            # Newest come first: one that is worse than what came after it in training has not regressed. Nor has a
            # member of a population: most are worse than the best.
            in_population = work.group.study is not None
            if former is not None and former.seen < work.seen.id and not in_population:
                events += self._regressions(work, run, suite, results, former)
        return Evaluated(
            task=work.task.id,
            group=work.task.group,
            token=work.task.token,
            values={name: _json(estimate) for name, estimate in values.items()},
            best=best,
            events=events,
        )

    def _regressions(
        self,
        work: ClaimedEvaluation,
        run: EvaluatedRun,
        suite: Suite,
        results: Sequence[TaskResult],
        former: Group,
    ) -> list[EvalEvent]:
        metric = suite.compared_metric
        if metric is None or suite.objective is None:
            return []
        reference = task_results(suite, self._client.group_results(former.id), run.outputs.parent)
        compared = compare(
            [result for result in results if result.has(metric)],
            [result for result in reference if result.has(metric)],
            metric=metric,
            higher_is_better=suite.objective.maximize,
        )
        worse = [one for one in compared if one.regressed]
        return [_regression(work, suite, metric, former, one, self._clock()) for one in worse]

    def _changed_sources(
        self, work: ClaimedEvaluation, run: EvaluatedRun, suite: Suite, found: GroupResults
    ) -> list[EvalEvent]:
        events: list[EvalEvent] = []
        for task in suite.tasks:
            now = _source_with_bindings(run, suite, task)
            before = {result.source for result in found.results.get(task.identity, ()) if result.source}
            if now and before - {now}:
                message = (
                    f"the function of eval task {task.name!r}, or a file of gin bindings, changed since some of "
                    f"its results were computed, and its version is still {task.version!r}: raise the version to "
                    "compute them again"
                )
                events.append(_event(work, "changed-source", suite, message, {"task": task.name}, self._clock()))
        return events


class _Unknown(PhylaError):
    """A claimed eval task is not, or not as it was queued, among the suites that this process knows."""


def _known(run: EvaluatedRun, work: ClaimedEvaluation) -> tuple[Suite, EvalTask | None]:
    """Return the suite and the eval task of a claim; no eval task for an aggregation."""
    try:
        suite = suite_named(run.suites, work.group.suite)
        if work.task.kind is EvalTaskKind.AGGREGATE:
            return suite, None
        task = suite.task(work.task.task)
    except ConfigurationError as error:
        raise _Unknown(str(error)) from error
    if task.identity != work.task.identity:
        # Its result would be filed under what it is not.
        raise _Unknown(
            f"eval task {task.name!r} of suite {suite.name!r} was queued with another version, configuration or "
            "seed than it has now"
        )
    return suite, task


def task_results(suite: Suite, found: GroupResults, outputs: Path) -> list[TaskResult]:
    """Merge the shards of every eval task of a group that is done, in the order of the suite.

    Args:
        suite: the suite.
        found: what the ledger has.
        outputs: directory of the outputs of all runs.

    Raises:
        EvaluationError: shards do not fit each other, or count another number of samples than expected.
    """
    shards = {task.identity: task.shards for task in found.tasks}
    done: list[TaskResult] = []
    for task in suite.tasks:
        entries = found.results.get(task.identity, ())
        if not entries or len(entries) < shards.get(task.identity, 1):
            continue
        statistics = [
            {name: decode(raw, plugins.resolve_class) for name, raw in entry.statistics.items()}
            for entry in entries
        ]
        done.append(
            TaskResult(
                task=task.name,
                config=task.config,
                tags=task.tags,
                weight=task.weight,
                metrics=merged(statistics, expected=task.samples),
                arrays=_Arrays(outputs, entries),
            )
        )
    return done


@final
class _Arrays(Mapping[str, Sequence[NDArray[Any]]]):
    """Saved arrays by name, one per shard, read when they are looked at."""

    def __init__(self, outputs: Path, entries: Sequence[EvalResult]) -> None:
        self._outputs = outputs
        self._entries = entries
        names = dict.fromkeys(name for entry in entries for name, file in entry.files.items() if _is_array(file))
        self._names = tuple(names)

    def __getitem__(self, name: str) -> list[NDArray[Any]]:
        if name not in self._names:
            raise KeyError(name)
        files = [entry.files[name] for entry in self._entries if name in entry.files]
        return [np.load(self._outputs / str(file), allow_pickle=False) for file in files]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _is_array(file: object) -> bool:
    return str(file).endswith(".npy")


def seed_of(seed: int, replicate: int) -> int:
    """Return the seed of an evaluation: the eval task's own, and another for each repetition."""
    if not replicate:
        return seed % 2**31
    return int.from_bytes(hashlib.sha256(f"{seed}:{replicate}".encode()).digest()[:4], "big") % 2**31


def source_of(task: EvalTask) -> str:
    """Return a digest of a function's source; empty where there is none to see."""
    if task.evaluate is None:
        return ""
    try:
        return hashlib.sha256(inspect.getsource(inspect.unwrap(task.evaluate)).encode()).hexdigest()[:16]
    except (OSError, TypeError):
        return ""


def _source_with_bindings(run: EvaluatedRun, suite: Suite, task: EvalTask) -> str:
    # Files of bindings say what is computed, too, and are no part of the eval task's identity.
    bindings = run.bindings.digest(suite.gin_files)
    return f"{source_of(task)}+{bindings}" if bindings else source_of(task)


def _is_better(suite: Suite, values: Mapping[str, Estimate], former: Group | None) -> bool:
    assert suite.objective is not None
    mine = values.get(suite.objective.metric)
    if mine is None:
        known = ", ".join(sorted(values)) or "none"
        raise ConfigurationError(
            f"suite {suite.name!r} has no aggregate {suite.objective.metric!r}, which its objective names; it "
            f"gives {known}"
        )
    order = suite.objective.order(mine.value)
    if former is None:
        return order > float("-inf")
    best: Any = former.values.get(suite.objective.metric)
    return best is None or order > suite.objective.order(float(best["value"]))


def _regression(
    work: ClaimedEvaluation, suite: Suite, metric: str, former: Group, one: Comparison, now: float
) -> EvalEvent:
    message = (
        f"regression: {suite.name}/{one.task} {metric} {one.current:.4g} at step {work.seen.step}, against "
        f"{one.reference:.4g} of the best checkpoint before it ({one.test} test, p = {one.p_adjusted:.2g})"
    )
    data: JsonObject = {
        "task": one.task,
        "metric": metric,
        "current": json_number(one.current),
        "reference": json_number(one.reference),
        "reference_group": former.id,
        "test": one.test,
        "p": one.p,
        "p_adjusted": one.p_adjusted,
        "step": work.seen.step,
        "name": work.seen.name,
    }
    return _event(work, "regression", suite, message, data, now)


def _event(
    work: ClaimedEvaluation, kind: str, suite: Suite, message: str, data: JsonObject, now: float
) -> EvalEvent:
    return EvalEvent(
        run=work.task.run,
        kind=kind,
        seen=work.seen.id,
        suite=suite.name,
        message=message,
        data=data,
        created_at=now,
    )


def _json(estimate: Estimate) -> JsonObject:
    return {"value": json_number(estimate.value), "stderr": json_number(estimate.stderr)}


def _failed(
    work: ClaimedEvaluation, error: str, *, retryable: bool = True, gone: bool = False
) -> EvaluationFailed:
    return EvaluationFailed(
        task=work.task.id,
        group=work.task.group,
        token=work.task.token,
        error=error,
        retryable=retryable,
        gone=gone,
    )


def _flush(folder: Path) -> None:
    """Make saved files durable before the ledger names them."""
    if not folder.is_dir():
        return
    for path in (*folder.iterdir(), folder, folder.parent):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def _removed(folder: Path) -> Iterator[None]:
    try:
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _removed_on_error(folder: Path) -> Iterator[None]:
    try:
        yield
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
