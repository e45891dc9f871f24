"""A trial in its worker: staged files, reports and commits while the training function runs."""

import operator
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from multiprocessing.process import current_process
from pathlib import Path
from typing import Any, final

from phyla.checkpoints import Checkpoints, attempt_name
from phyla.client import Client
from phyla.errors import CheckpointCorrupt, CheckpointMissing, ConfigurationError, LeaseLost, StateError
from phyla.machine import Completion, Failure
from phyla.records import Checkpoint, CheckpointKind, JsonObject, Phase, Report, TrialRecord
from phyla.settings import Clock
from phyla.space import Params
from phyla.validation import brief, nearest
from phyla.worker.training.stopwatch import Stopwatch
from phyla.worker.training.trial import Parent, Trial

VALUES_KEPT = 1000
"""Reported values of a metric of the objective that a fitness rule can look back on."""


@final
@dataclass(eq=False)
class TrialSession:
    """One attempt at a trial; `trial` is its interface for the training function."""

    record: TrialRecord
    client: Client
    repository: Checkpoints
    _: KW_ONLY
    metrics: Sequence[str]
    work_root: Path
    clock: Clock
    worker: Any = None
    cached_state: Any = None
    on_report: Callable[[], None] | None = None
    save_every_s: float | None = None
    watch: Stopwatch = field(default_factory=Stopwatch)

    def __post_init__(self) -> None:
        self._pid, self._process = os.getpid(), current_process()
        self.watch.enter(Phase.LOADING)
        self._timings: dict[str, float] | None = None
        record = self.record
        self.id = record.id
        self.token = record.token
        self.measuring = record.measures
        self.rank: int | None = None  # of `phyla.integrations.ranks`
        self.working_dir = self.work_root / f"trial-{record.id}"
        self._read: set[str] = set()
        self.touched = False
        self.params = Params.of_flat(dict(record.params), read=self._read)
        self.parent = self._source(record.parent_checkpoint, record.start_step)
        self.progress = self._source(record.progress, record.progress_step or 0)
        prefix = self.repository.prefix
        self._name = attempt_name(prefix, record.id, record.token, record.worker, record.started_at)
        self._staged: Path | None = None
        self._committed: Checkpoint | None = None
        self._saves = 0
        self._saved_at = self.clock()
        self._saved_to_stop = False
        self._at: int | None = None
        self._left = False
        self._stop = False
        self._stop_seen = False
        self.stop_reason: JsonObject | None = None
        self._lock = threading.Lock()
        self._unsent: list[Report] = []
        self._reported = 0
        self._values: dict[str, list[float]] = {metric: [] for metric in self.metrics}
        self._last: dict[str, float] = {}
        self.result: Mapping[str, Any] | None = None  # Metrics with which `tell` completed the trial.
        self._steps: tuple[int, int] | None = None  # lowest and highest that were reported
        self.beats = 0
        self.trial = Trial(self)

    def _source(self, name: str | None, step: int) -> Parent | None:
        if name is None:
            return None
        # Each session holds the copy of a remote checkpoint, until `release`.
        path, record = self.repository.path(name), self.record
        return Parent(path=path, step=step, name=name, index=record.parent_index, trial=record.parent)

    # For training; see `Trial`

    def _check_owner(self, action: str, *, shared: bool = False) -> None:
        """Reject a fork of the training process; `shared` admits processes of `multiprocessing`."""
        if os.getpid() != self._pid and not (shared and current_process() is not self._process):
            raise StateError(
                f"{action}: process {os.getpid()} was forked from {self._pid}, which trains trial {self.id}; only "
                "that one reports and saves. Return what the fork found to it, or end the fork with os._exit()"
            )

    @property
    def checkpoint_dir(self) -> Path:
        """The staged directory."""
        self._check_owner("checkpoint_dir", shared=self._staged is not None)
        if self._staged is None:
            self._staged = self.repository.stage(self._name)
        return self._staged

    def has_saved(self) -> bool:
        """Return whether the staged directory has files, or needs none."""
        if self.measuring:
            return True
        folder = self.checkpoint_dir
        if folder.is_symlink() or not folder.is_dir():
            raise CheckpointMissing(
                f"{folder} was removed or replaced: save files into this directory (trial.checkpoint_dir, or "
                "{save_to} of a command), and leave the directory itself where it is"
            )
        return any(folder.iterdir())

    @property
    def places(self) -> dict[Path, str]:
        """The directories that it writes to, with their names."""
        work = {self.working_dir: "working_dir"}
        return work if self._staged is None else {self._staged: "checkpoint_dir", **work}

    def steps(self) -> Iterator[int]:
        """Iterate over the steps to train."""
        self._check_owner("steps()", shared=True)
        self._at = self.progress.step if self.progress else self.record.start_step
        self._left = False
        self.watch.enter(Phase.TRAINING)
        try:
            while self._at < self.record.end_step:
                if self.should_stop():
                    break
                self.beats += 1
                yield self._at
                self._at += 1
            self._left = True
        finally:
            # A loop that was left early may be closed late, during another trial.
            if self._timings is None:
                self.watch.enter(Phase.SAVING)

    def reach(self, step: int) -> None:
        """Record the progress of training that does not use `steps()`."""
        self._at, self._left = step, True
        self.beats += 1

    def report(self, metrics: Mapping[str, Any], step: int | None) -> None:
        """Take metrics."""
        self._check_owner("report()")
        flat = _numbers(metrics)
        step = self.reached_step if step is None else _whole(step)
        with self._lock:
            self.beats += 1
            self._reported += 1
            self._unsent.append(Report(step, flat, self._reported))
            first, last = self._steps or (step, step)
            self._steps = min(first, step), max(last, step)
            self._last.update(flat)
            for metric, values in self._values.items():
                if metric in flat:
                    values.append(flat[metric])
                    del values[:-VALUES_KEPT]
        if self.on_report is not None:
            self.on_report()

    def is_repeated(self, metrics: Mapping[str, Any]) -> bool:
        """Return whether the trial already has a result; reject a different one."""
        if self.result is None:
            return False
        flat = _numbers(metrics)
        other = {name: value for name, value in flat.items() if repr(self.result.get(name)) != repr(value)}
        if other:
            counts = {name: self.result.get(name) for name in other}
            raise StateError(
                f"tell(): trial {self.id} already has a result, {counts}; {other} does not replace it, and "
                "nothing was changed"
            )
        return True

    def check_no_result(self, error: str | Exception) -> None:
        """Reject the failure of a trial that already has a result."""
        if self.result is not None:
            raise StateError(
                f"tell(error={error!r}): trial {self.id} already has a result, {dict(self.result)}; it cannot "
                "fail any more, and nothing was changed"
            )

    def should_stop(self) -> bool:
        """Return whether to stop soon, and record that training saw the request."""
        self._stop_seen |= self._stop
        return self._stop_seen

    def should_save(self) -> bool:
        """Return whether to save progress now."""
        if self.stop_reason is not None or self.measuring:
            return False
        if self._stop and not self._saved_to_stop:
            return self.should_stop()
        return self.save_every_s is not None and not 0 <= self.clock() - self._saved_at < self.save_every_s

    def save_progress(self, step: int | None) -> None:
        """Commit progress."""
        self._check_owner("save_progress()")
        stopping = self._stop
        if self.stop_reason is not None:
            raise LeaseLost(f"trial {self.id} was stopped early by a rule; its progress is not needed")
        if step is not None:
            step = operator.index(step)
            self.record.check_progress(step)
        elif self._at is None:
            raise StateError("save_progress(): pass step=, since steps() is not used")
        else:
            # Inside the loop, the current step has just been trained; after the loop, all are counted.
            step = self._at if self._left else self._at + 1
        with self.watch.within(Phase.SAVING):
            self._saves += 1
            self.has_saved()
            name = f"{self._name}.p{self._saves}"
            target = self.repository.stage(name)
            for entry in list(self.checkpoint_dir.iterdir()):
                entry.rename(target / entry.name)
            checkpoint = self._commit(name, step, CheckpointKind.PROGRESS)
            self.client.save_progress(self.id, self.token, checkpoint)
            self._saved_at, self._saved_to_stop = self.clock(), stopping
            self.beats += 1

    # For the worker

    def stop(self, reason: JsonObject | None = None) -> None:
        """Ask training to stop, perhaps because of a rule. Takes no lock, so a signal handler may call it."""
        if reason is not None:
            self.stop_reason = reason
        self._stop = True

    @property
    def stopped_early(self) -> bool:
        """Whether training saw the request to stop and returned before it was done."""
        done = self._at is not None and self._at >= self.record.end_step and not self.unreported
        return self._stop_seen and not done

    @property
    def interrupted(self) -> bool:
        """Whether `steps()` ended before its last step because the trial should stop."""
        return self._left and self._at is not None and self._at < self.record.end_step

    @property
    def reached_step(self) -> int:
        """Age of the weights after training; the end unless `steps()` was left early."""
        return self.record.end_step if self._at is None else self._at

    @property
    def total_steps(self) -> int | None:
        """The steps of a member, if the strategy has the same number for each."""
        strategy: Any = self.client.record.config["strategy"]
        total = strategy.get("total_steps")
        return total if isinstance(total, int) else None

    @property
    def unreported(self) -> tuple[str, ...]:
        """The metrics of the objective that were not reported; none when fitness comes from a suite."""
        return tuple(metric for metric, values in self._values.items() if not values)

    def missing(self, problem: str, when: str = "", do: str | None = None) -> str:
        """Return the message of an error about metrics that were not reported; `do` is what to do about it."""
        names = self.unreported
        single = len(self._values) == 1
        subject = f"the objective {names[0]!r}" if single else f"{' and '.join(names)}, which the objective needs"
        example = ", ".join(f"{name!r}: value" for name in names)
        do = do or f"Call trial.report({{{example}}}) {when}"
        near = {name: nearest(name, self._last) for name in names}
        meant = " and ".join(f"{match!r} be {name!r}" for name, match in near.items() if match is not None)
        hint = f": should {meant}?" if meant else "."
        reported = ", ".join(map(repr, self._last)) or "nothing"
        return f"{problem} {subject}; trial {self.id} reported {reported}{hint} {do}"

    def take_reports(self) -> Sequence[Report]:
        """Return the unsent reports, and mark them as sent."""
        with self._lock:
            reports, self._unsent = self._unsent, []
            return reports

    def give_back(self, reports: Sequence[Report]) -> None:
        """Restore reports that could not be sent."""
        with self._lock:
            self._unsent[:0] = reports

    def commit(self) -> Checkpoint | None:
        """Commit the checkpoint; None for a measurement. Later calls return the same checkpoint."""
        if self.measuring:
            self.discard()
            return None
        if self._committed is None:
            self.watch.enter(Phase.SAVING)
            self.has_saved()
            self._committed = self._commit(self._name, self.reached_step, CheckpointKind.RESULT)
        return self._committed

    def _commit(self, name: str, step: int, kind: CheckpointKind) -> Checkpoint:
        now = self.clock()
        committed = self.repository.commit(name, step=step, now=now)
        return Checkpoint(
            name=name,
            study=self.record.study,
            trial=self.id,
            kind=kind,
            step=step,
            identity=committed.digest,
            size_bytes=committed.size_bytes,
            created_at=now,
        )

    def completion(self, checkpoint: Checkpoint | None, index: int = 0) -> Completion:
        """Return the completion of the trial."""
        if self._at is None and self._timings is None:
            self.watch.rename(Phase.LOADING, Phase.EVALUATING if self.measuring else Phase.TRAINING)
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
            noticed=None if self.measuring else self._collect_notices(),
        )

    def _collect_notices(self) -> JsonObject | None:
        """Return inputs that the training function ignored; None if it used everything."""
        notices: dict[str, Any] = {}
        if not self.touched and (self.parent or self.progress) is not None:
            notices["untouched"] = True
        unread = [name for name in self.record.params if name not in self._read]
        if unread:
            notices["unread"] = unread
        begin, end = self.record.start_step, max(self.record.end_step, self.reached_step)
        first, last = self._steps or (begin, end)
        if not begin <= first <= last <= end:
            notices["steps"] = [first, last]
        return notices or None

    def timings(self) -> dict[str, float]:
        """Return the seconds by phase until this was first asked; the time after belongs to the next trial."""
        if self._timings is None:
            self._timings = self.watch.take()
        return self._timings

    def release(self) -> None:
        """Release the checkpoints that training started from."""
        checkpoints = filter(None, (self.parent, self.progress))
        self.repository.release(*(checkpoint.name for checkpoint in checkpoints))

    def discard(self) -> None:
        """Remove staged, uncommitted files."""
        if self._staged is not None:
            self.repository.discard(self._name)
            self._staged = None


def unusable_start(
    record: TrialRecord,
    client: Client,
    repository: Checkpoints,
    *,
    again: bool = False,
    usable: set[str] | None = None,
) -> Failure | None:
    """Return the failure to submit if a checkpoint that a trial starts from is unusable; None if all are usable.

    With `again` all bytes are read again, because training from them failed. Checkpoints in `usable` are not
    looked at again; those that can be used are added to it. Failing storage does not make the checkpoint bad, and
    raises `CheckpointStorageFailed`.
    """
    usable = set() if usable is None else usable
    for name in (record.parent_checkpoint, record.progress):
        if name is not None and name not in usable:
            recorded = client.checkpoint(name, study=record.study)
            try:
                repository.use(name, None if recorded is None else recorded.digest, again=again)
            except (CheckpointMissing, CheckpointCorrupt) as error:
                damage = str(error) if isinstance(error, CheckpointCorrupt) else None
                return Failure(job=record.id, token=record.token, error=str(error), gone=name, damage=damage)
            usable.add(name)
    return None


def _whole(step: Any) -> int:
    """Return a step as an int, whatever the type of the number."""
    problem = f"report(step={brief(step)}): give the age of the weights, a whole number below 2**63"
    try:
        number = int(step)
    except (TypeError, ValueError, OverflowError):
        raise ConfigurationError(problem) from None
    if number != step or abs(number) >= 2**63:
        raise ConfigurationError(problem)
    return number


def _numbers(metrics: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    flat: dict[str, float] = {}
    for key, value in metrics.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            flat.update(_numbers(value, f"{name}/"))
            continue
        if not name:
            raise ConfigurationError(f"report({{{key!r}: {brief(value)}}}): a metric needs a name")
        try:
            flat[name] = float(value)
        except OverflowError:
            raise ConfigurationError(f"report({name}=...): the number is too large for a float") from None
        except (TypeError, ValueError):
            plain = value is None or isinstance(value, str | type)
            do = "report a number, or leave it out" if plain else "report its mean or one of its elements"
            raise ConfigurationError(
                f"report({name}={value!r}): a metric is a number, this is a {type(value).__name__}; {do}"
            ) from None
    return flat
