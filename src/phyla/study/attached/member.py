"""A training loop that continues from trial to trial, and polls at each step."""

import contextlib
import logging
import operator
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, final

from phyla.errors import ConfigurationError, LeaseLost, NoFitness
from phyla.records import JobKind, Phase
from phyla.space import Params
from phyla.worker import Trial, session_of

LOG = logging.getLogger("phyla")
Saves: TypeAlias = str | Path | Callable[[Path], object]
"""A file or directory that holds a checkpoint, or a function that saves one into the directory it is given."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a loop does next.

    Attributes:
        stop: whether to leave the loop: training ended, or this process is being stopped.
        load: the checkpoint to load in place of the weights in memory; None to keep these, unless `fresh`.
        fresh: whether to start again from newly initialised weights.
        params: the hyperparameters to use from here on.
        step: age of the weights from here on; the next poll counts on from it.
        seed: for newly initialised weights, in [0, 2**31).
        member: index of the member in the population; -1 with `stop`.
    """

    stop: bool = False
    load: Path | None = None
    fresh: bool = False
    params: Params
    step: int
    seed: int = 0
    member: int = -1


@final
class AttachedMember:
    """A member of a population, as a continuous training loop sees it; see `Attached.member`."""

    def __init__(
        self,
        next_trial: Callable[[], Trial | None],
        refuse_others: Callable[[], None],
        give_back: Callable[[], None],
    ) -> None:
        self._next_trial, self._refuse_others, self._give_back = next_trial, refuse_others, give_back
        self._trial: Trial | None = None
        self._stopped = False
        self._at = 0
        self._params = Params({})
        self._mine = object()

    def poll(self, step: int, *, checkpoint: Saves, metrics: Mapping[str, Any] | None = None) -> Answer:
        """Report the progress of training, and return what to do next.

        The first call only says what to start with. Between grid lines (multiples of `steps_per_trial`) a call
        stores the metrics and answers "go on". At a grid line, or the first call after it, it saves the
        checkpoint, completes the trial, and waits for the next one. That usually continues the same member, and
        the answer is "go on"; after an exploit, or with another member, it names what to load. When this process
        is being stopped, it saves the checkpoint as progress, from which another one resumes, and answers `stop`.

        Args:
            step: steps trained into the weights, counted on from `Answer.step`.
            checkpoint: a file or directory, which is copied; or a function that saves into the directory that it
                is given. Used only when something is to be saved.
            metrics: metrics at this step, name to number; at a grid line those of the objective among them,
                unless an earlier call of this trial had them.

        Raises:
            ConfigurationError: the step is before the last one, or the checkpoint is not there.
            NoFitness: the objective was not given up to the grid line; nothing was submitted.
            StudyChanged: the study was given other settings meanwhile; attach again.
            StudyFailed: the study stopped itself; the message says what to do.
            StateError: another thread or process uses this, or it was closed.
            StoreError: the database failed.
        """
        trial, step = self._trial, operator.index(step)
        if self._stopped:
            return self._stop()
        if trial is None:
            return self._next()
        self._refuse_others()
        if step < self._at:
            raise ConfigurationError(
                f"poll(step={step}): the weights have trained {self._at} steps already; count on from the step of "
                "the last answer"
            )
        session, self._at = session_of(trial), step
        session.reach(step)
        if metrics:
            trial.report(metrics, step=step)
        stopping = session.should_stop()
        if step >= trial.end_step and session.stop_reason is None:
            if session.unreported:
                raise NoFitness(session.missing(f"poll() came to step {step} without", "or pass metrics="))
            self._save(trial, checkpoint)
            trial.cached_state = self._mine
        elif not stopping:
            return Answer(params=self._params, step=step, seed=trial.seed, member=trial.member)
        elif session.stop_reason is None and step > trial.start_step:
            self._save(trial, checkpoint)
            with contextlib.suppress(LeaseLost):
                trial.save_progress(step)
        return self._next()

    def _next(self) -> Answer:
        before = self._trial
        self._trial = trial = self._next_trial()
        if trial is None:
            return self._stop()
        if session_of(trial).record.kind is JobKind.FINAL:
            LOG.warning(
                "training has ended, and poll() cannot measure for the final: to run it, loop over trials() now, "
                "and for each load its source, score it, and report"
            )
            self._give_back()
            return self._stop()
        if trial.measuring:
            raise ConfigurationError(
                "the strategy measures checkpoints again, which poll() cannot do; use trials(), or leave out "
                "what asks for it"
            )
        source, self._at = trial.source, trial.start_step if trial.progress is None else trial.progress.step
        in_memory = source is not None and trial.cached_state is self._mine
        self._params = trial.params
        if in_memory and before is not None and before.params == trial.params:
            trial.params.flat()  # They are in use already, which counts as read.
        session_of(trial).watch.enter(Phase.TRAINING)
        return Answer(
            load=None if in_memory or source is None else source.path,
            fresh=source is None,
            params=self._params,
            step=self._at,
            seed=trial.seed,
            member=trial.member,
        )

    def _stop(self) -> Answer:
        self._stopped, self._trial = True, None
        return Answer(stop=True, params=self._params, step=self._at)

    def _save(self, trial: Trial, checkpoint: Saves) -> None:
        with session_of(trial).watch.within(Phase.SAVING):
            if callable(checkpoint):
                checkpoint(trial.checkpoint_dir)
                return
            path = Path(checkpoint)
            if path.is_dir():
                shutil.copytree(path, trial.checkpoint_dir, dirs_exist_ok=True)
            elif path.is_file():
                shutil.copy2(path, trial.checkpoint_dir)
            else:
                raise ConfigurationError(f"poll(checkpoint={str(path)!r}): there is no such file or directory")
