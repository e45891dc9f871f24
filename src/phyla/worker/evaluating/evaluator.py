"""Runs eval tasks, and has groups aggregated."""

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple, final

from phyla import plugins
from phyla.checkpoints.disk import Disk
from phyla.client import Client
from phyla.errors import (
    CheckpointCorrupt,
    CheckpointError,
    CheckpointsAbsent,
    CheckpointStorageFailed,
    ConfigurationError,
    EvaluationError,
    NotImportable,
    PhylaError,
    ProcessSpoiled,
    StoreError,
    advice_on,
    ends_only_call,
    is_storage_error,
)
from phyla.evaluation import EvalTask, Preparation, Suite
from phyla.evaluation.recorder import encode
from phyla.evaluation.suite import suite_named
from phyla.machine import ClaimedEvaluation, Evaluated, Failure
from phyla.records import EvalResult, JobKind, escape_name
from phyla.settings import Clock, system_clock
from phyla.system.failpoints import failpoint
from phyla.worker.containment.surroundings import Surroundings
from phyla.worker.evaluating.aggregation import Aggregation
from phyla.worker.evaluating.evaluated_study import EvaluatedStudy, apply_bindings
from phyla.worker.evaluating.evaluation import (
    Evaluation,
    EvaluationCheckpoint,
    checkpoint_of,
    convert,
    run_command,
)
from phyla.worker.evaluating.prepared import PreparationFailed, PreparedCheckpoints, Record
from phyla.worker.training.causes import log_error, traceback_of

KEPT = ". Then run the study again. Completed trials and evaluations are kept"
"""End of the message that ends a study whose storage is broken. The eval task returns to the queue."""
LOOK_S = 0.1
"""How often a worker looks whether another one has prepared its checkpoint."""


class _Loaded(NamedTuple):
    suite: str
    seen: int
    value: Any


class _Unknown(PhylaError):
    """The suites of this process lack a claimed eval task, or have a different one."""


@final
@dataclass(eq=False)
class Evaluator:
    """Runs one eval task after the other.

    Attributes:
        studies: those whose checkpoints it evaluates, by id.
        state: what the study's `setup(worker)` returned.
        log: where full tracebacks go; None writes none.
        limit: starts the time that the running job may take, in seconds; None for no limit. A sign of progress.
        outdated: whether the suites of a study changed since this process read them: it should be restarted.
    """

    client: Client
    studies: Mapping[int, EvaluatedStudy]
    _: KW_ONLY
    work_root: Path
    name: str
    clock: Clock = system_clock
    timer: Callable[[], float] = time.perf_counter
    state: Any = None
    log: Path | None = None
    surroundings: Surroundings = field(default_factory=Surroundings)
    limit: Callable[[float | None], None] = lambda timeout_s: None

    def __post_init__(self) -> None:
        self._loaded: _Loaded | None = None
        self._stopping = False
        # Id of the checkpoint that was prepared last, and studies that may have some to delete.
        self._prepared: int | None = None
        self._untidy = {
            number for number, study in self.studies.items() if any(suite.preparation for suite in study.suites)
        }
        self._current: Evaluation | None = None
        self._aggregated: set[tuple[int, str]] = set()  # studies and their suites
        # Without bindings, gin is left to the user.
        suites = [suite for study in self.studies.values() for suite in study.suites]
        self._binds = any(suite.gin_files or any(task.gin for task in suite.tasks) for suite in suites)
        self.outdated = False

    @property
    def holding(self) -> int | None:
        """Id of the checkpoint that is loaded."""
        return None if self._loaded is None else self._loaded.seen

    @property
    def beats(self) -> int:
        """Signs of progress of the running eval task."""
        current = self._current
        return 0 if current is None else current.beats

    def stop(self) -> None:
        """Ask the running eval task to stop. Takes no lock, so a signal handler may call it."""
        self._stopping = True
        current = self._current
        if current is not None:
            current.stop()

    def tidy(self, following: object) -> None:
        """Delete prepared checkpoints that no eval task needs; do nothing if the `following` job has the last."""
        if isinstance(following, ClaimedEvaluation) and following.seen.id == self._prepared:
            return
        for study in tuple(self._untidy):
            prepared = PreparedCheckpoints(self.studies[study].prepared)
            if not prepared.collect(self._store_id, study, partial(self.client.in_evaluation, study=study)):
                self._untidy.discard(study)

    @cached_property
    def _store_id(self) -> str:
        return self.client.store.identity().id

    def run(self, work: ClaimedEvaluation) -> Evaluated | Failure | None:
        """Run one job; return None to requeue it."""
        study = self.studies[work.job.study]
        try:
            suite, task = _find_task(study, work)
            if task is not None:
                try:
                    return self._evaluate(work, study, suite, task)
                finally:
                    # Aggregates, and training in the same process, must not see them.
                    self._bind(study)
            if study.changed():
                # An aggregate of the old suite would miss the new eval tasks.
                raise _Unknown(f"suite {suite.name!r} was changed")
            first = (work.job.study, suite.name) not in self._aggregated
            aggregation = Aggregation(
                client=self.client, work=work, study=study, suite=suite, now=self.clock(), first=first
            )
            done = aggregation.run()
            self._aggregated.add((work.job.study, suite.name))
            return done
        except (StoreError, CheckpointsAbsent, ProcessSpoiled):
            raise
        except PreparationFailed as error:
            return _make_failure(work, str(error), retryable=not error.final)
        except CheckpointStorageFailed as error:
            self._loaded = None
            if study.stop is not None:
                study.stop(f"{error}{KEPT}")
                return None
            # It may be read again later, or elsewhere.
            return _make_failure(work, f"{type(error).__name__}: {error}")
        except CheckpointError as error:
            self._loaded = None
            return _report_gone(work, error)
        except _Unknown as error:
            if not study.changed():
                return _make_failure(work, str(error), retryable=False)
            self.outdated = True
            return None
        except (ConfigurationError, NotImportable) as error:
            return self._log_error(work, error, retryable=False)
        except BaseException as error:
            if not ends_only_call(error):
                raise
            # The loaded object may be the cause.
            self._loaded = None
            return self._handle_error(work, study, error)

    def _handle_error(
        self, work: ClaimedEvaluation, study: EvaluatedStudy, error: BaseException
    ) -> Failure | None:
        if work.job.kind is JobKind.EVALUATE:
            try:
                study.sources.check(work.seen, again=True)
            except CheckpointsAbsent:
                raise
            except CheckpointStorageFailed:
                pass
            except CheckpointError as vanished:
                return _report_gone(work, vanished)
        if isinstance(error, OSError) and is_storage_error(error) and study.stop is not None:
            where = f"an evaluation that saves into {study.outputs} failed with {error}"
            study.stop(f"{where}; {advice_on(error)}{KEPT}")
            return None
        return self._log_error(work, error)

    def _log_error(self, work: ClaimedEvaluation, error: BaseException, *, retryable: bool = True) -> Failure:
        """Write an error with its full traceback to the log; its first line names the error and its place."""
        job, on = work.job, f"of suite {work.group.suite!r} on {escape_name(work.seen.name)}"
        subject = f"eval task {job.task!r}" if job.kind is JobKind.EVALUATE else "aggregation"
        cause = log_error(error, f"{subject} {on}, attempt {job.token} failed", None, self.log)
        text = f"{cause.words()}\n{traceback_of(error)}"
        if isinstance(error, PhylaError) and cause.line is None:
            # Its message is complete; it may have several lines.
            text = f"{type(error).__name__}: {error}"
        return _make_failure(work, text, retryable=retryable)

    def _evaluate(
        self, work: ClaimedEvaluation, study: EvaluatedStudy, suite: Suite, task: EvalTask
    ) -> Evaluated | None:
        original = checkpoint_of(work.seen, study.sources.path(work.seen))
        self._bind(study, suite.gin_files)
        checkpoint = self._prepare(work, study, suite.preparation, original)
        if checkpoint is None:
            return None
        loaded = self._load(suite, work.seen.id, checkpoint)
        self._bind(study, suite.gin_files, task.gin)
        label = f"{work.job.id}.{work.job.token}"
        outputs = study.outputs / label
        scratch = self.work_root / f"eval-{label}"
        evaluation = Evaluation(
            work.job,
            task,
            checkpoint,
            suite=suite.name,
            loaded=loaded,
            worker=self.state,
            outputs=outputs,
            work_root=scratch,
        )
        self._current = evaluation
        began = self.timer()
        with ExitStack() as unless_done:
            unless_done.callback(shutil.rmtree, outputs, ignore_errors=True)
            try:
                if task.command is not None:
                    cwd = None if task.cwd is None else str(task.cwd)
                    run_command(task.command, evaluation, timeout_s=task.timeout_s, cwd=cwd)
                else:
                    ran = f"eval task {task.name!r} ran on {escape_name(work.seen.name)}"
                    self.surroundings.call(ran, task, evaluation)
                if evaluation.should_stop:
                    return None
                duration_s = self.timer() - began
                if not evaluation.statistics and not evaluation.files:
                    raise ConfigurationError(
                        f"eval task {task.name!r} recorded nothing: call evaluation.record(...) or .save(...)"
                    )
                with self.surroundings.guard():
                    study.sources.check(work.seen)
                    _flush(outputs)
                unless_done.pop_all()
            finally:
                self._current = None
                shutil.rmtree(scratch, ignore_errors=True)
        failpoint("evaluation.before_result")
        result = EvalResult(
            identity=work.seen.identity,
            task_identity=work.job.identity,
            replicate=work.job.replicate,
            shard=work.job.shard,
            shards=work.job.shards,
            study=work.job.study,
            statistics={name: encode(metric, plugins.reference) for name, metric in evaluation.statistics.items()},
            files={name: f"{study.outputs.name}/{label}/{file}" for name, file in evaluation.files.items()},
            source=study.source(suite, task),
            duration_s=duration_s,
            worker=self.name,
            created_at=self.clock(),
        )
        return Evaluated(job=work.job.id, group=work.job.group, token=work.job.token, result=result)

    def _prepare(
        self,
        work: ClaimedEvaluation,
        study: EvaluatedStudy,
        preparation: Preparation | None,
        original: EvaluationCheckpoint,
    ) -> EvaluationCheckpoint | None:
        """Return the checkpoint that eval tasks read, prepared if it is not yet; None if the worker is to stop."""
        if preparation is None:
            return original
        self._prepared = work.seen.id
        self._untidy.add(work.job.study)
        wanted = Record(
            store=self._store_id,
            study=work.job.study,
            checkpoint=work.seen.id,
            identity=work.seen.identity,
            preparation=preparation.identity,
            claimed_at=work.job.started_at or 0.0,
        )
        path = PreparedCheckpoints(study.prepared).find_or_make(
            wanted,
            partial(self._make, work, study, preparation, original),
            created_at=work.job.created_at,
            max_attempts=preparation.max_attempts,
            wait=self._wait,
        )
        self.limit(work.job.timeout_s)
        return None if path is None else replace(original, path=path)

    def _wait(self) -> bool:
        """Wait a moment for another worker, without a limit of time; return False to stop."""
        self.limit(None)
        time.sleep(LOOK_S)
        return not self._stopping

    def _make(
        self,
        work: ClaimedEvaluation,
        study: EvaluatedStudy,
        preparation: Preparation,
        original: EvaluationCheckpoint,
        into: Path,
    ) -> None:
        """Prepare a checkpoint; the error of a failure is one line that all eval tasks share."""
        self._loaded = None  # its memory may be needed
        self.limit(preparation.timeout_s)
        what = f"prepare={preparation.name}"
        try:
            if preparation.function is not None:
                ran = f"{what} ran on {escape_name(original.name)}"
                self.surroundings.call(ran, preparation.function, original, into)
            else:
                convert(preparation, original, into, self.work_root / f"eval-{work.job.id}.{work.job.token}")
            if not any(into.iterdir()):
                raise EvaluationError("it wrote nothing into its directory `into`")
        except BaseException as error:
            if not ends_only_call(error):
                raise
            study.sources.check(work.seen, again=True)
            if isinstance(error, OSError) and is_storage_error(error):
                raise
            heading = f"{what} of suite {work.group.suite!r} on {escape_name(original.name)} failed"
            cause = log_error(error, heading, None, self.log)
            raise PreparationFailed(f"{what} failed: {cause.words()}") from error
        study.sources.check(work.seen)

    def _bind(self, study: EvaluatedStudy, files: Sequence[str] = (), task: Sequence[str] = ()) -> None:
        if self._binds:
            apply_bindings(study.gin_root, files, task)

    def _load(self, suite: Suite, seen: int, checkpoint: EvaluationCheckpoint) -> Any:
        """Return what the suite's `load` returned, now or for an eval task before."""
        held = self._loaded
        if held is not None and (held.suite, held.seen) == (suite.name, seen):
            return held.value
        self._loaded = held = None  # before the next one needs its memory
        ran = f"suite {suite.name!r} loaded {escape_name(checkpoint.name)}"
        value = None if suite.load is None else self.surroundings.call(ran, suite.load, checkpoint)
        self._loaded = _Loaded(suite.name, seen, value)
        return value


def _find_task(study: EvaluatedStudy, work: ClaimedEvaluation) -> tuple[Suite, EvalTask | None]:
    """Return the suite and the eval task of a claim; no eval task for an aggregation."""
    try:
        suite = suite_named(study.suites, work.group.suite)
        if work.job.kind is JobKind.AGGREGATE:
            return suite, None
        task = suite.task(work.job.task)
    except ConfigurationError as error:
        raise _Unknown(str(error)) from error
    if task.identity != work.job.identity:
        # Its result would be stored under the wrong identity.
        raise _Unknown(
            f"eval task {task.name!r} of suite {suite.name!r} was queued with another version, configuration or "
            "seed than it has now"
        )
    return suite, task


def _make_failure(work: ClaimedEvaluation, error: str, *, retryable: bool = True) -> Failure:
    return Failure(job=work.job.id, token=work.job.token, error=error, retryable=retryable)


def _report_gone(work: ClaimedEvaluation, error: CheckpointError) -> Failure:
    damage = str(error) if isinstance(error, CheckpointCorrupt) else None
    return replace(_make_failure(work, str(error)), gone=work.seen.name, damage=damage)


def _flush(folder: Path) -> None:
    """Make saved files durable before the ledger names them."""
    if not folder.is_dir():
        return
    for path in (*folder.iterdir(), folder, folder.parent):
        Disk().fsync_file(path)
