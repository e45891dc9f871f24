"""Trials that Lightning trains."""

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import BaseFinetuning, Checkpoint, LearningRateFinder, StochasticWeightAveraging
from lightning.pytorch.loggers.logger import DummyLogger

from phyla.errors import ConfigurationError
from phyla.integrations.hyperparameters import keep_hyperparameters
from phyla.integrations.random_states import random_state, restore_random
from phyla.integrations.steps import FrameworkSteps, refuse_measuring
from phyla.worker.training.trial import Trial

__all__ = ["PhylaCallback"]

FILE = "lightning.ckpt"


class PhylaCallback(Checkpoint):
    """Trains one trial with a `Trainer`: from `ckpt_path` to the trial's `end_step`, counted as `global_step`.

    Optimizers and schedulers keep the hyperparameters of `configure_optimizers`. The callback stops at `end_step`,
    or when the trial should stop, saves the checkpoint there, or progress, and reports what Lightning logs.

    Attributes:
        ckpt_path: for `trainer.fit(ckpt_path=...)`: the file to load; None at a fresh start.
        root_dir: for `Trainer(default_root_dir=...)`: a directory of this attempt alone.
    """

    def __init__(self, trial: Trial) -> None:
        self.trial = trial
        self.ckpt_path = None if trial.source is None else _file_in(trial.source.path)
        self.root_dir = trial.working_dir / f"attempt-{trial.token}"
        self._kept = ExitStack()
        self._random: Mapping[str, Any] | None = None
        self._steps: FrameworkSteps | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Report logged values, in addition to the existing loggers."""
        trainer.loggers = [*trainer.loggers, _Reports(self.trial)]

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Record the hyperparameters before Lightning restores the parent's; reject unsuitable settings."""
        if getattr(trainer._accelerator_connector.cluster_environment, "auto_requeue", False):
            raise ConfigurationError(
                "Lightning would requeue this Slurm job itself, while phyla gives its trial to another worker; "
                "write Trainer(plugins=[LightningEnvironment()]), from lightning.pytorch.plugins.environments"
            )
        refuse_measuring(self.trial, "trainer.validate(model, ckpt_path=callback.ckpt_path)", "fit")
        if trainer.max_steps == -1:
            raise ConfigurationError(
                "write Trainer(max_steps=...) with the strategy's total_steps: without it, Lightning forgets the "
                "state of a data loader at the end of an epoch"
            )
        if trainer.min_epochs or trainer.min_steps:
            raise ConfigurationError(
                f"Trainer(min_epochs={trainer.min_epochs}, min_steps={trainer.min_steps}): with these Lightning "
                "trains on after the end of the trial; leave them out"
            )
        for callback in trainer.callbacks:
            if isinstance(callback, (BaseFinetuning, LearningRateFinder, StochasticWeightAveraging)):
                raise ConfigurationError(
                    f"{type(callback).__name__} overrides the trial's learning rate; leave it out"
                )
        if self.trial.progress is None:
            schedulers = [config.scheduler for config in trainer.lr_scheduler_configs]
            self._kept.enter_context(keep_hyperparameters(*trainer.optimizers, *schedulers))

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Set the hyperparameters, after Lightning restored the optimizers."""
        # Without Lightning's handlers: on SIGTERM it would raise, and the trial would count as failed.
        trainer._signal_connector.teardown()
        self._kept.close()
        loop, epochs = trainer.fit_loop, trainer.fit_loop.epoch_progress
        if epochs.total.processed == epochs.total.ready:
            # After the end of an epoch, Lightning would end that epoch again, or not count the next one.
            if epochs.total.completed < epochs.total.processed:
                epochs.increment_completed()
            loop.reset_restart_stage()
            loop.epoch_loop.restarting = False
        elif self.trial.progress is not None and self._random is not None:
            restore_random(self._random)  # Within an epoch, recreating its loader must draw no random numbers.
        self._steps = FrameworkSteps(self.trial, trainer.global_step)
        self._steps.check_length("Trainer(...)", trainer.max_steps)
        trainer.should_stop = not self._steps.going

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        """Stop, and save, at the end of the trial, or when it should stop."""
        assert self._steps is not None
        if trainer.should_stop or self._steps.reach(trainer.global_step):
            return
        trainer.should_stop = True
        if not self._steps.interrupted:
            trainer.check_val_every_n_epoch = 1
        elif not trainer.is_last_batch:
            trainer.limit_val_batches = 0
        if not trainer.is_last_batch:
            self._save(trainer, self._steps)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save at the end of an epoch, after all other work per epoch."""
        assert self._steps is not None
        if trainer.is_last_batch and (trainer.fit_loop.restarting or not self._steps.going):
            # Lightning steps ReduceLROnPlateau after this hook, and never in an epoch that it resumed.
            trainer.fit_loop.epoch_loop.update_lr_schedulers("epoch", update_plateau_schedulers=True)
        if trainer.is_last_batch and not self._steps.going:
            self._save(trainer, self._steps)

    def _save(self, trainer: Trainer, steps: FrameworkSteps) -> None:
        if self.trial.stop_reason is None:
            trainer.save_checkpoint(self.trial.checkpoint_dir / FILE)
            if steps.interrupted:
                self.trial.save_progress(steps.age(trainer.global_step))

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Reject training that ended before the trial."""
        # Without a batch to train, Lightning left out on_train_start.
        (self._steps or FrameworkSteps(self.trial, trainer.global_step)).check_ended(
            "Lightning", trainer.global_step
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the states of the random number generators, which Lightning does not save."""
        return {"random": random_state()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore them, before a loader of the next epoch draws its order."""
        self._random = state_dict["random"]
        if self.trial.progress is not None:
            restore_random(self._random)


def _file_in(checkpoint: Path) -> Path:
    """Return the Lightning file in a checkpoint, perhaps an imported one."""
    if checkpoint.is_file() or (checkpoint / FILE).is_file():
        return checkpoint if checkpoint.is_file() else checkpoint / FILE
    files = sorted(checkpoint.rglob("*.ckpt"))
    if len(files) != 1:
        raise ConfigurationError(f"{checkpoint} has {len(files)} files *.ckpt; a trial starts from exactly one")
    return files[0]


class _Reports(DummyLogger):
    """A Lightning logger that reports to phyla."""

    def __init__(self, trial: Trial) -> None:
        super().__init__()
        self._trial = trial

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        self._trial.report(metrics)
