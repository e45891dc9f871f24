"""Trials trained by a Trainer of Hugging Face or TRL."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from torch.optim.lr_scheduler import LambdaLR, ReduceLROnPlateau
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments, set_seed
from transformers.trainer_utils import get_last_checkpoint

from phyla.errors import ConfigurationError
from phyla.integrations.hyperparameters import keep_hyperparameters
from phyla.integrations.steps import FrameworkSteps, refuse_measuring
from phyla.worker.training.trial import Trial

__all__ = ["PhylaCallback"]


class PhylaCallback(TrainerCallback):
    """Trains one trial with a `Trainer`, up to the trial's `end_step`, counted as `global_step`.

    After the Trainer has loaded the optimizer, it sets the hyperparameters of the `TrainingArguments` again. It
    stops at `end_step`, evaluates there unless `eval_strategy` is "no", and has the Trainer save the checkpoint.
    If the trial should stop earlier, the Trainer saves progress; saves of `save_steps` are progress, too. It
    reports what the Trainer logs.

    Args:
        trial: the trial.
        own: optimizer and scheduler that you created yourself; they keep your hyperparameters.

    Attributes:
        output_dir: for `TrainingArguments`: where the Trainer saves.
        resume_from: for `trainer.train(resume_from_checkpoint=...)`; None at a fresh start.
    """

    def __init__(self, trial: Trial, *own: Any) -> None:
        self.trial = trial
        self.output_dir = str(trial.checkpoint_dir)
        source = trial.source
        # An imported checkpoint may have its files at the top.
        self.resume_from = None if source is None else get_last_checkpoint(str(source.path)) or str(source.path)
        self._own, self._kept = own, ExitStack()
        if trial.progress is None:
            self._kept.enter_context(keep_hyperparameters(*own))
        self._steps: FrameworkSteps | None = None
        # From a parent, the Trainer takes up the state of its random number generators, too.
        self._seeds = trial.parent is not None and trial.progress is None

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Set the hyperparameters, after the Trainer loaded the optimizer."""
        self._check(args)
        self._steps = FrameworkSteps(self.trial, state.global_step)
        self._steps.check_length("TrainingArguments(...)", state.max_steps)
        groups, scheduler = kwargs["optimizer"].param_groups, kwargs["lr_scheduler"]
        reduced = [group["lr"] / (group.get("initial_lr") or group["lr"] or 1) for group in groups]
        self._kept.close()
        if self.trial.progress is None:
            if not self._own:
                for group, values in zip(groups, _of(args, groups, kwargs["model"]), strict=True):
                    group.update({name: value for name, value in values.items() if name in group})
            if scheduler not in self._own:
                _go_on(scheduler, groups, reduced)

    def _check(self, args: TrainingArguments) -> None:
        checks = {
            "output_dir": (Path(args.output_dir) == self.trial.checkpoint_dir, "give callback.output_dir"),
            "load_best_model_at_end": (
                not args.load_best_model_at_end,
                "write False: the score must belong to the last weights",
            ),
            "save_strategy": (args.save_strategy != "best", 'write "no", "steps" or "epoch"'),
            "save_only_model": (not args.save_only_model, "a trial continues with the optimizer's state"),
            "auto_find_batch_size": (
                not (args.auto_find_batch_size and self._own),
                "with a smaller batch, your own optimizer would train with the parent's rate",
            ),
        }
        for name, (fits, why) in checks.items():
            if not fits:
                raise ConfigurationError(f"TrainingArguments({name}={getattr(args, name)!r}): {why}")
        refuse_measuring(self.trial, "trainer.evaluate()", "train, and load the model from callback.resume_from")

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        """Draw the trial's own random numbers."""
        if self._seeds:
            set_seed(self.trial.seed)
            self._seeds = False

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Stop at the end of the trial, or when it should stop."""
        assert self._steps is not None
        if not self._steps.reach(state.global_step):
            control.should_training_stop = True
            control.should_evaluate = not self._steps.interrupted and args.eval_strategy != "no"
            control.should_save = self.trial.stop_reason is None

    def on_epoch_end(self, args: Any, state: Any, control: TrainerControl, **kwargs: Any) -> None:
        """Do nothing twice after the end."""
        assert self._steps is not None
        if not self._steps.going:
            control.should_evaluate = control.should_save = False

    def on_train_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Reject training that ended before the trial."""
        assert self._steps is not None
        self._steps.check_ended("the Trainer", state.global_step)

    def on_save(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Commit progress; the last save is the checkpoint."""
        assert self._steps is not None
        if self._steps.going or self._steps.interrupted:
            self.trial.save_progress(self._steps.age(state.global_step))

    def on_log(self, args: Any, state: TrainerState, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Report the numbers that are logged."""
        if logs and self._steps is not None:
            numbers = {name: value for name, value in logs.items() if isinstance(value, (int, float))}
            self.trial.report(numbers, step=self._steps.age(state.global_step))


def _of(args: TrainingArguments, groups: list[dict[str, Any]], model: Any) -> list[dict[str, Any]]:
    """Return the hyperparameters of each group of the optimizer that a Trainer makes."""
    _, values = Trainer.get_optimizer_cls_and_kwargs(args, model)
    bases = {group.get("initial_lr", group["lr"]) for group in groups}
    # The Trainer makes two groups: the parameters with weight decay, and those without.
    if len(groups) != 2 or groups[1]["weight_decay"] != 0 or len(bases) > 1:
        raise ConfigurationError(
            f"this optimizer has {len(groups)} parameter groups, not those of a Trainer; pass yours to "
            "both: Trainer(optimizers=(optimizer, None)) and PhylaCallback(trial, optimizer)"
        )
    return [{**values, "weight_decay": args.weight_decay}, {**values, "weight_decay": 0.0}]


def _go_on(scheduler: Any, groups: list[dict[str, Any]], reduced: list[float]) -> None:
    """Continue a Trainer's scheduler from the rates of these groups; it may have `reduced` them."""
    if isinstance(scheduler, LambdaLR):
        scheduler.base_lrs = [group["lr"] for group in groups]
        reduced = [factor(scheduler.last_epoch) for factor in scheduler.lr_lambdas]
    elif not isinstance(scheduler, ReduceLROnPlateau):
        raise ConfigurationError(
            f"the rate of the Trainer's {type(scheduler).__name__} cannot be set; pass yours to both: "
            "Trainer(optimizers=(optimizer, scheduler)) and PhylaCallback(trial, optimizer, scheduler)"
        )
    for group, factor in zip(groups, reduced, strict=True):
        group["initial_lr"] = group["lr"]
        group["lr"] *= factor
    scheduler._last_lr = [group["lr"] for group in groups]
