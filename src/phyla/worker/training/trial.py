"""The trial as training code sees it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from phyla.errors import ConfigurationError

if TYPE_CHECKING:
    from phyla.worker.training.session import TrialSession


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
        id: key of the trial, unique in its store.
        token: number of this attempt, counted from 1.
        member: index of the member in the population.
        generation: how many trials the member completed before this one.
        params: hyperparameters, readable flat (`params["opt/lr"]`) and nested (`params["opt"]["lr"]`).
        seed: for the training code, in [0, 2**31); the same in every attempt.
        start_step: age of the weights at the start.
        end_step: age to train to.
        worker: what the study's `setup(worker)` returned in this process; None without one.
        measuring: whether the checkpoint is only to be measured again: no steps, report the objective.
        reason: the decision that made this trial, as data.
    """

    def __init__(self, session: "TrialSession") -> None:
        record = session.record
        self._session = session
        self.id = record.id
        self.token = record.token
        self.member = record.member
        self.generation = record.generation
        self.params = session.params
        self.seed = record.seed
        self.start_step = record.start_step
        self.end_step = record.end_step
        self.worker = session.worker
        self.measuring = session.measuring
        self.reason: Mapping[str, Any] = record.reason

    @property
    def parent(self) -> Parent | None:
        """The checkpoint to start from; None to start fresh."""
        self._session.touched = True
        return self._session.parent

    @property
    def progress(self) -> Parent | None:
        """What an earlier attempt of this trial saved with `save_progress()`; None if nothing."""
        self._session.touched = True
        return self._session.progress

    @property
    def source(self) -> Parent | None:
        """Where to load from: `progress` if there is any, else `parent`, else None for a fresh start."""
        return self.progress or self.parent

    @property
    def cached_state(self) -> Any:
        """Any object; kept for the next trial only if that continues the same weights in the same process.

        None if weights come from elsewhere.
        """
        self._session.touched |= self._session.cached_state is not None
        return self._session.cached_state

    @cached_state.setter
    def cached_state(self, state: Any) -> None:
        self._session.cached_state = state

    @property
    def checkpoint_dir(self) -> Path:
        """An empty directory of this attempt; what is in it when training returns becomes the checkpoint.

        Raises:
            CheckpointStorageFailed: the disk is full, read-only, or permission is missing.
        """
        return self._session.checkpoint_dir

    @property
    def working_dir(self) -> Path:
        """A directory of this trial for logs and scratch; shared by its attempts, kept, no checkpoint."""
        self._session.working_dir.mkdir(parents=True, exist_ok=True)
        return self._session.working_dir

    def steps(self) -> Iterator[int]:
        """Iterate over the steps to train, `start_step` .. `end_step - 1`.

        After a retry it continues from the saved progress. It ends early when the trial should stop.
        A step counts as trained when the loop asks for the next one: after `break`, the step in the body does not.
        """
        return self._session.steps()

    def report(self, metrics: Mapping[str, Any] | None = None, /, *, step: int | None = None, **more: Any) -> None:
        """Report metrics, as often as you like. Stopping rules check each report.

        Metrics of one objective may be reported separately if they have the same `step`.

        Args:
            metrics: name to number; nested mappings become slashed names.
            step: age of the weights; by default the step that `steps()` is at, or the end.
            **more: further metrics.

        Raises:
            ConfigurationError: a value is not a number, has no name, or an empty one.
        """
        if metrics is not None and not isinstance(metrics, Mapping):
            raise ConfigurationError(f"report({metrics!r}): give it a name, as in trial.report(loss={metrics!r})")
        self._session.report({**(metrics or {}), **more}, step)

    @property
    def should_stop(self) -> bool:
        """Whether to stop soon: the worker is being stopped, the trial was cancelled, or a rule stopped it.

        Save with `save_progress()` if that is quick, and return; the trial goes back to the queue. With a
        `stop_reason` there is nothing to save: just return.
        """
        return self._session.should_stop()

    @property
    def stop_reason(self) -> Mapping[str, Any] | None:
        """Why a stopping rule stopped this trial, as data; None unless one did.

        It is known about a second after the report. Further training is useless then: the trial counts as stopped,
        and its results are discarded.
        """
        return self._session.stop_reason

    @property
    def should_save(self) -> bool:
        """Whether to call `save_progress()` now: the run's `save_every_s` passed, or the worker is being stopped.

        Never with a `stop_reason`, and after the worker was asked to stop only until something is saved.
        """
        return self._session.should_save()

    def save_progress(self, step: int | None = None) -> None:
        """Commit the contents of `checkpoint_dir` as progress: a retry resumes there instead of at the parent.

        `checkpoint_dir` is empty afterwards.

        Args:
            step: age of the weights, from `start_step` to `end_step`; by default the next step of `steps()`.

        Raises:
            UsageError: `step` is not between `start_step` and `end_step`.
            NoCheckpoint: nothing was saved in `checkpoint_dir`.
            LeaseLost: the trial was given to another worker, or stopped by a rule.
            CheckpointStorageFailed: the disk is full, read-only, or permission is missing.
        """
        self._session.save_progress(step)

    def __repr__(self) -> str:
        return (
            f"Trial(id={self.id}, member={self.member}, generation={self.generation}, "
            f"steps={self.start_step}..{self.end_step}, params={dict(self._session.record.params)})"
        )


def session_of(trial: Trial) -> "TrialSession":
    """Return the session of a trial."""
    return trial._session
