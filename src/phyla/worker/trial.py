"""The trial as training code sees it."""

import operator
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from phyla.api import Client
from phyla.arguments import nearest
from phyla.checkpoints import LocalCheckpoints, attempt_name
from phyla.errors import CheckpointCorrupt, CheckpointMissing, ConfigurationError, LeaseLost, StateError
from phyla.machine import Completion, Failure
from phyla.records import Checkpoint, CheckpointKind, JsonObject, Phase, Report, TrialKind, TrialRecord
from phyla.settings import Clock
from phyla.space import Params
from phyla.worker.stopwatch import Stopwatch

VALUES_KEPT = 1000
"""Reported values of a metric of the objective that a fitness rule can look back on."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Parent:
    """A checkpoint to start from.

    Attributes:
        path: its directory; read-only.
        step: age of the weights in it.
        name: its name in the study.
        index: place within it, when one checkpoint holds several models; else 0.
        trial: the trial that wrote it.
    """

    path: Path
    step: int
    name: str
    index: int = 0
    trial: int | None = None


@final
class Trial:
    """One short training session: from `start_step` to `end_step` with fixed hyperparameters.

    Load from `source` (the parent's checkpoint, or the progress of an earlier attempt), train while iterating
    over `steps()`, save into `checkpoint_dir`, and `report()` metrics, those of the study's objective among them.

    Attributes:
        params: hyperparameters, readable flat (`params["opt/lr"]`) and nested (`params["opt"]["lr"]`).
        seed: for the training code, in [0, 2**31); the same in every attempt.
        start_step: age of the weights at the start.
        end_step: age to train to.
        worker: what the study's `setup(worker)` returned in this process; None without one.
    """

    def __init__(
        self,
        record: TrialRecord,
        client: Client,
        repository: LocalCheckpoints,
        *,
        metrics: Sequence[str],
        work_root: Path,
        clock: Clock,
        worker: Any = None,
        cached_state: Any = None,
        on_report: Callable[[], None] | None = None,
        watch: Stopwatch | None = None,
    ) -> None:
        self._watch = watch or Stopwatch(time.perf_counter)
        self._watch.enter(Phase.LOADING)
        self._timings: dict[str, float] | None = None
        self._record = record
        self._client = client
        self._repository = repository
        self._work_root = work_root
        self._clock = clock
        self._on_report = on_report
        self.worker = worker
        self._cached_state = cached_state
        self._read: set[str] = set()
        self._touched = False
        self.params = Params.of_flat(dict(record.params), read=self._read)
        self.seed = record.seed
        self.start_step = record.start_step
        self.end_step = record.end_step
        self._parent = _parent(record.parent_checkpoint, record.start_step, record, repository)
        self._progress = (
            None
            if record.progress is None
            else _parent(record.progress, record.progress_step or 0, record, repository)
        )
        self._name = attempt_name(repository.prefix, record.id, record.token, record.worker, record.started_at)
        self._staged: Path | None = None
        self._committed: Checkpoint | None = None
        self._saves = 0
        self._at: int | None = None
        self._left = False
        self._stop = False
        self._stop_seen = False
        self._stop_reason: JsonObject | None = None
        self._lock = threading.Lock()
        self._unsent: list[Report] = []
        self._values: dict[str, list[float]] = {metric: [] for metric in metrics}
        self._last: dict[str, float] = {}
        self.beats = 0

    # What it is

    @property
    def id(self) -> int:
        """Key of the trial, unique in its store."""
        return self._record.id

    @property
    def token(self) -> int:
        """Number of this attempt, counted from 1."""
        return self._record.token

    @property
    def member(self) -> int:
        """Index of the member in the population."""
        return self._record.member

    @property
    def generation(self) -> int:
        """How many trials the member completed before this one."""
        return self._record.generation

    @property
    def measuring(self) -> bool:
        """Whether the checkpoint is only to be measured again: no steps, report the objective."""
        return self._record.kind is TrialKind.MEASURE

    @property
    def parent(self) -> Parent | None:
        """The checkpoint to start from; None to start fresh."""
        self._touched = True
        return self._parent

    @property
    def progress(self) -> Parent | None:
        """What an earlier attempt of this trial saved with `save_progress()`; None if nothing."""
        self._touched = True
        return self._progress

    @property
    def source(self) -> Parent | None:
        """Where to load from: `progress` if there is any, else `parent`, else None for a fresh start."""
        return self.progress or self.parent

    @property
    def cached_state(self) -> Any:
        """Anything; kept from one trial to the next only if that continues the same weights in the same process.

        None whenever weights come from elsewhere.
        """
        self._touched |= self._cached_state is not None
        return self._cached_state

    @cached_state.setter
    def cached_state(self, state: Any) -> None:
        self._cached_state = state

    @property
    def reason(self) -> Mapping[str, Any]:
        """The decision that made this trial, as data."""
        return self._record.reason

    @property
    def record(self) -> TrialRecord:
        """The trial as the store has it."""
        # All that could be read is in there.
        self._touched = True
        self._read.update(self._record.params)
        return self._record

    # Where to write

    @property
    def checkpoint_dir(self) -> Path:
        """An empty directory of this attempt; what is in it when training returns becomes the checkpoint.

        Raises:
            CheckpointStorageFailed: the disk is full, read-only, or permission is missing.
        """
        if self._staged is None:
            self._staged = self._repository.stage(self._name)
        return self._staged

    @property
    def working_dir(self) -> Path:
        """A directory of this trial for logs and scratch; shared by its attempts, kept, no checkpoint."""
        path = self._work_root / f"trial-{self.id}"
        path.mkdir(parents=True, exist_ok=True)
        return path

    @property
    def places(self) -> str:
        """The directories that it writes to, for messages."""
        work = self._work_root / f"trial-{self.id}"
        return f"{work} (working_dir)" if self._staged is None else f"{self._staged} (checkpoint_dir) and {work}"

    # Training

    def steps(self) -> Iterator[int]:
        """Iterate over the steps to train, `start_step` .. `end_step - 1`.

        After a retry it goes on from the saved progress. It ends early when the trial should stop.
        """
        self._at = self._progress.step if self._progress else self.start_step
        self._left = False
        self._watch.enter(Phase.TRAINING)
        try:
            while self._at < self.end_step:
                if self._stop:
                    self._stop_seen = True
                    break
                self.beats += 1
                yield self._at
                self._at += 1
            self._left = True
        finally:
            # A loop that was left early may be closed late, when the time is another trial's.
            if self._timings is None:
                self._watch.enter(Phase.SAVING)

    def report(self, metrics: Mapping[str, Any] | None = None, /, *, step: int | None = None, **more: Any) -> None:
        """Report metrics, as often as wished.

        Stopping rules judge report by report. Metrics of one objective that are reported apart count together if
        they have the same `step`.

        Args:
            metrics: name to number; nested mappings become slashed names.
            step: age of the weights; by default the step that `steps()` is at, or the end.
            **more: further metrics.

        Raises:
            ConfigurationError: a value is no number.
        """
        flat = _numbers({**(metrics or {}), **more})
        if step is None:
            step = self.end_step if self._at is None else self._at
        with self._lock:
            self.beats += 1
            self._unsent.append(Report(int(step), flat))
            self._last.update(flat)
            for metric, values in self._values.items():
                if metric in flat:
                    values.append(flat[metric])
                    del values[:-VALUES_KEPT]
        if self._on_report is not None:
            self._on_report()

    @property
    def should_stop(self) -> bool:
        """Whether to stop soon: the worker is being stopped, the trial was cancelled, or a rule stopped it.

        Save with `save_progress()` if that is quick, and return; the trial goes back to the queue. With a
        `stop_reason` there is nothing to save: just return.
        """
        if self._stop:
            self._stop_seen = True
        return self._stop_seen

    @property
    def stop_reason(self) -> Mapping[str, Any] | None:
        """Why a stopping rule stopped this trial, as data; None unless one did.

        It is known about a second after the report. Training on is pointless: the trial
        counts as stopped, and what it leaves is thrown away.
        """
        return self._stop_reason

    def save_progress(self, step: int | None = None) -> None:
        """Commit what is in `checkpoint_dir` as progress: a retry resumes there instead of at the parent.

        `checkpoint_dir` is empty afterwards.

        Args:
            step: age of the weights, from `start_step` to `end_step`; by default the next step of `steps()`.

        Raises:
            UsageError: `step` is not between `start_step` and `end_step`.
            NoCheckpoint: nothing was saved in `checkpoint_dir`.
            LeaseLost: the trial was given to somebody else, or stopped by a rule.
            CheckpointStorageFailed: the disk is full, read-only, or permission is missing.
        """
        if self._stop_reason is not None:
            raise LeaseLost(f"trial {self.id} was stopped early by a rule; its progress is not needed")
        if step is not None:
            step = operator.index(step)
            self._record.check_progress(step)
        if step is None:
            if self._at is None:
                raise StateError("save_progress(): say at which step, since steps() is not being used")
            # Inside the loop the step that it is at has just been trained; after it, none has.
            step = self._at if self._left else self._at + 1
        with self._watch.within(Phase.SAVING):
            self._save_progress(step)

    def _save_progress(self, step: int) -> None:
        self._saves += 1
        name = f"{self._name}.p{self._saves}"
        target = self._repository.stage(name)
        for entry in list(self.checkpoint_dir.iterdir()):
            entry.rename(target / entry.name)
        committed = self._repository.commit(name, step=step, now=self._clock())
        checkpoint = Checkpoint(
            name=name,
            study=self._record.study,
            trial=self.id,
            kind=CheckpointKind.PROGRESS,
            step=step,
            digest=committed.digest,
            size_bytes=committed.size_bytes,
            created_at=self._clock(),
        )
        self._client.save_progress(self.id, self.token, checkpoint)
        self.beats += 1

    # For the worker

    def stop(self) -> None:
        """Ask training to stop. Takes no lock, so a signal handler may call it."""
        self._stop = True

    def stop_for(self, reason: JsonObject) -> None:
        """Ask training to stop because a rule stopped the trial."""
        self._stop_reason = reason
        self._stop = True

    @property
    def stopped_early(self) -> bool:
        """Whether training saw the request to stop and returned before it was done."""
        done = self._at is not None and self._at >= self.end_step and self.has_fitness
        return self._stop_seen and not done

    @property
    def reached_step(self) -> int:
        """Age of the weights after training; the end unless `steps()` was left early."""
        return self.end_step if self._at is None else self._at

    @property
    def unreported(self) -> tuple[str, ...]:
        """The metrics of the objective that were not reported; none when fitness comes from a suite."""
        return tuple(metric for metric, values in self._values.items() if not values)

    @property
    def has_fitness(self) -> bool:
        """Whether what the objective needs was reported."""
        return not self.unreported

    def missing(self, what: str, when: str) -> str:
        """Return the message of an error about metrics that were not reported."""
        names = self.unreported
        single = len(self._values) == 1
        said = f"the objective {names[0]!r}" if single else f"{' and '.join(names)}, which the objective needs"
        example = ", ".join(f"{name!r}: value" for name in names)
        near = [nearest(name, self._last) for name in names]
        meant = " and ".join(repr(name) for name in dict.fromkeys(near) if name is not None)
        hint = f": did you mean {meant}?" if meant else "."
        reported = ", ".join(map(repr, self._last)) or "nothing"
        return f"{what} {said}; trial {self.id} reported {reported}{hint} Call trial.report({{{example}}}) {when}"

    def noticed(self) -> JsonObject | None:
        """Return what a training function should have used and did not; None if it used everything."""
        untouched = not self._touched and (self._parent or self._progress) is not None
        unread = [name for name in self._record.params if name not in self._read]
        found: JsonObject = {
            **({"untouched": True} if untouched else {}),
            **({"unread": unread} if unread else {}),
        }
        return found or None

    def take_reports(self) -> Sequence[Report]:
        """Return the reports that were not sent yet; they count as sent then."""
        with self._lock:
            reports, self._unsent = self._unsent, []
            return reports

    def give_back(self, reports: Sequence[Report]) -> None:
        """Take back reports that could not be sent."""
        with self._lock:
            self._unsent[:0] = reports

    def commit(self) -> Checkpoint | None:
        """Commit the checkpoint; None for a measurement. Called again, return what it committed.

        Raises:
            NoCheckpoint: nothing was saved in `checkpoint_dir`.
            CheckpointError: its bytes cannot be kept.
        """
        if self.measuring:
            self.discard()
            return None
        if self._committed is not None:
            return self._committed
        self._watch.enter(Phase.SAVING)
        if self._staged is None:
            _ = self.checkpoint_dir
        now = self._clock()
        committed = self._repository.commit(self._name, step=self.reached_step, now=now)
        self._committed = Checkpoint(
            name=self._name,
            study=self._record.study,
            trial=self.id,
            step=self.reached_step,
            digest=committed.digest,
            size_bytes=committed.size_bytes,
            created_at=now,
        )
        return self._committed

    def completion(self, checkpoint: Checkpoint | None, index: int = 0) -> Completion:
        """Return what completes the trial."""
        if self._at is None and self._timings is None:
            self._watch.rename(Phase.LOADING, Phase.EVALUATING if self.measuring else Phase.TRAINING)
        return Completion(
            trial=self.id,
            token=self.token,
            reached_step=self.reached_step,
            values={metric: tuple(values) for metric, values in self._values.items()},
            metrics=dict(self._last),
            reports=tuple(self.take_reports()),
            checkpoint=checkpoint,
            checkpoint_index=index,
            timings=self.timings(),
            noticed=None if self.measuring else self.noticed(),
        )

    def timings(self) -> dict[str, float]:
        """Return the seconds by phase until this was first asked; the time after belongs to the next trial."""
        if self._timings is None:
            self._timings = self._watch.take()
        return self._timings

    def discard(self) -> None:
        """Remove what was staged and not committed."""
        if self._staged is not None:
            self._repository.discard(self._name)
            self._staged = None

    def __repr__(self) -> str:
        return (
            f"Trial(id={self.id}, member={self.member}, generation={self.generation}, "
            f"steps={self.start_step}..{self.end_step}, params={dict(self._record.params)})"
        )


def _parent(name: str | None, step: int, record: TrialRecord, repository: LocalCheckpoints) -> Parent | None:
    if name is None:
        return None
    return Parent(path=repository.path(name), step=step, name=name, index=record.parent_index, trial=record.parent)


def unusable_start(
    record: TrialRecord, client: Client, repository: LocalCheckpoints, *, again: bool = False
) -> Failure | None:
    """Return the failure to hand in if a checkpoint that a trial starts from cannot be used; None if all can.

    Args:
        record: the trial.
        client: speaks with the study.
        repository: where its checkpoints are.
        again: read all bytes again, because training from them failed.

    Raises:
        CheckpointStorageFailed: the storage failed, which says nothing about the checkpoint.
        StoreError: the database failed.
    """
    for name in (record.parent_checkpoint, record.progress):
        if name is None:
            continue
        recorded = client.checkpoint(name)
        damage = None
        try:
            repository.use(name, None if recorded is None else recorded.digest, again=again)
            continue
        except CheckpointMissing as error:
            text = str(error)
        except CheckpointCorrupt as error:
            text = damage = str(error)
        return Failure(trial=record.id, token=record.token, error=text, parent_gone=name, damage=damage)
    return None


def _numbers(metrics: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    flat: dict[str, float] = {}
    for key, value in metrics.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            flat.update(_numbers(value, f"{name}/"))
            continue
        try:
            flat[name] = float(value)
        except (TypeError, ValueError):
            kind = type(value).__name__
            raise ConfigurationError(
                f"report({name}={value!r}): a metric is a number, this is a {kind}; report its mean or one of "
                "its elements"
            ) from None
    return flat
