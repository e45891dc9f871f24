"""A trial as its worker sees it: what is staged, reported and committed while the training function runs."""

import operator
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, final

from phyla.api import Client
from phyla.arguments import nearest
from phyla.checkpoints import LocalCheckpoints, attempt_name
from phyla.errors import CheckpointCorrupt, CheckpointMissing, ConfigurationError, LeaseLost, StateError
from phyla.machine import Completion, Failure
from phyla.records import Checkpoint, CheckpointKind, JobKind, JsonObject, Phase, Report, TrialRecord
from phyla.settings import Clock
from phyla.space import Params
from phyla.worker.stopwatch import Stopwatch
from phyla.worker.trial import Parent, Trial

VALUES_KEPT = 1000
"""Reported values of a metric of the objective that a fitness rule can look back on."""


@final
class Session:
    """One attempt at a trial; `trial` is what the training function gets of it."""

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
        self.record = record
        self.id = record.id
        self.token = record.token
        self.measuring = record.kind is JobKind.MEASURE
        self._client = client
        self._repository = repository
        self._work_root = work_root
        self._clock = clock
        self._on_report = on_report
        self.worker = worker
        self.cached_state = cached_state
        self._read: set[str] = set()
        self.touched = False
        self.params = Params.of_flat(dict(record.params), read=self._read)
        self.start_step = record.start_step
        self.end_step = record.end_step
        self.parent = _parent(record.parent_checkpoint, record.start_step, record, repository)
        self.progress = (
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
        self.stop_reason: JsonObject | None = None
        self._lock = threading.Lock()
        self._unsent: list[Report] = []
        self._values: dict[str, list[float]] = {metric: [] for metric in metrics}
        self._last: dict[str, float] = {}
        self.beats = 0
        self.trial = Trial(self)

    # What training uses, by `Trial`

    @property
    def checkpoint_dir(self) -> Path:
        """Return the staged directory; see `Trial.checkpoint_dir`."""
        if self._staged is None:
            self._staged = self._repository.stage(self._name)
        return self._staged

    @property
    def working_dir(self) -> Path:
        """Return the directory for logs and scratch; see `Trial.working_dir`."""
        path = self._work_root / f"trial-{self.id}"
        path.mkdir(parents=True, exist_ok=True)
        return path

    @property
    def places(self) -> str:
        """The directories that it writes to, for messages."""
        work = self._work_root / f"trial-{self.id}"
        return f"{work} (working_dir)" if self._staged is None else f"{self._staged} (checkpoint_dir) and {work}"

    def steps(self) -> Iterator[int]:
        """Iterate over the steps to train; see `Trial.steps`."""
        self._at = self.progress.step if self.progress else self.start_step
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

    def report(self, metrics: Mapping[str, Any], step: int | None) -> None:
        """Take metrics; see `Trial.report`."""
        flat = _numbers(metrics)
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
        """Whether to stop soon; see `Trial.should_stop`."""
        if self._stop:
            self._stop_seen = True
        return self._stop_seen

    def save_progress(self, step: int | None) -> None:
        """Commit progress; see `Trial.save_progress`."""
        if self.stop_reason is not None:
            raise LeaseLost(f"trial {self.id} was stopped early by a rule; its progress is not needed")
        if step is not None:
            step = operator.index(step)
            self.record.check_progress(step)
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
        checkpoint = self._commit(name, step, CheckpointKind.PROGRESS)
        self._client.save_progress(self.id, self.token, checkpoint)
        self.beats += 1

    # What the worker uses

    def stop(self) -> None:
        """Ask training to stop. Takes no lock, so a signal handler may call it."""
        self._stop = True

    def stop_for(self, reason: JsonObject) -> None:
        """Ask training to stop because a rule stopped the trial."""
        self.stop_reason = reason
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
        untouched = not self.touched and (self.parent or self.progress) is not None
        unread = [name for name in self.record.params if name not in self._read]
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
        self._committed = self._commit(self._name, self.reached_step, CheckpointKind.RESULT)
        return self._committed

    def _commit(self, name: str, step: int, kind: CheckpointKind) -> Checkpoint:
        now = self._clock()
        committed = self._repository.commit(name, step=step, now=now)
        return Checkpoint(
            name=name,
            study=self.record.study,
            trial=self.id,
            kind=kind,
            step=step,
            digest=committed.digest,
            size_bytes=committed.size_bytes,
            created_at=now,
        )

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
        recorded = client.checkpoint(name, study=record.study)
        damage = None
        try:
            repository.use(name, None if recorded is None else recorded.digest, again=again)
            continue
        except CheckpointMissing as error:
            text = str(error)
        except CheckpointCorrupt as error:
            text = damage = str(error)
        return Failure(job=record.id, token=record.token, error=text, gone=name, damage=damage)
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
