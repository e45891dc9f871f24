"""Checkpoints of a PyTorch training loop, and hyperparameters that stay when states are loaded.

`optimizer.load_state_dict` restores the hyperparameters of the trial that saved the state, its learning rate among
them, and a scheduler whose state was loaded restores that rate at its next step. With `load` they stay.
"""

import copy
import inspect
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from phyla.errors import ConfigurationError
from phyla.integrations.random_states import random_state, restore_random
from phyla.worker.trial import Trial, session_of

__all__ = ["keep_hyperparameters", "load", "save"]

FILE = "state.pt"
RANDOM = "phyla.random"


@contextmanager
def keep_hyperparameters(*objects: Any) -> Iterator[None]:
    """Keep what optimizers and learning rate schedulers were made with, while their states are loaded.

    ```python
    optimizer = torch.optim.AdamW(model.parameters(), lr=trial.params["lr"])
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10_000)
    with keep_hyperparameters(optimizer, scheduler):
        optimizer.load_state_dict(...)
        scheduler.load_state_dict(...)
    ```

    The optimizers then have the averages that were loaded, and their own hyperparameters in every parameter group.
    Each scheduler begins anew and takes as many steps as the one that was saved, about 100,000 a second; so the
    rate is the one that it reaches from its own start. Make schedulers before, not after.

    `ReduceLROnPlateau`, as the only scheduler of an optimizer, keeps the factor by which it reduced. For that,
    write the `with` so that a fresh start runs it too, with nothing to load.

    Args:
        objects: optimizers and all their schedulers; anything else is ignored.
    """
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

    schedulers = [one for one in objects if isinstance(one, LRScheduler)]
    stepped = [one for one in schedulers if not isinstance(one, ReduceLROnPlateau)]
    fresh = [(_steps(one), copy.deepcopy(one.state_dict())) for one in stepped]
    made = []
    for optimizer in (one for one in objects if isinstance(one, Optimizer)):
        its = [one for one in schedulers if one.optimizer is optimizer]
        reducing = bool(its) and not any(one in stepped for one in its)
        for group in optimizer.param_groups if reducing else ():
            group.setdefault("initial_lr", group["lr"])
        if not its and hasattr(optimizer.step, "_wrapped_by_lr_sched"):
            warnings.warn("pass the optimizer's scheduler, too: its next step restores the old rate", stacklevel=3)
        made.append((optimizer, [_settings(optimizer, group) for group in optimizer.param_groups], reducing))
    try:
        yield
    finally:
        for optimizer, settings, reducing in made:
            _restore(optimizer, settings, reducing=reducing)
        _repeat(stepped, fresh)


def _restore(optimizer: Any, settings: Sequence[Mapping[str, Any]], *, reducing: bool) -> None:
    """Give the parameter groups the hyperparameters that they had."""
    groups = optimizer.param_groups
    if len(groups) != len(settings):
        raise ConfigurationError(
            f"keep_hyperparameters() noted {len(settings)} parameter groups of an optimizer that has "
            f"{len(groups)} now: call add_param_group() before it"
        )
    for group, own in zip(groups, settings, strict=True):
        loaded = group.pop("initial_lr", None)
        lr = own["initial_lr"] * (group["lr"] / loaded) if reducing and loaded else own["lr"]
        group.update({**own, "lr": lr})


def _repeat(stepped: Sequence[Any], fresh: Sequence[tuple[int, Any]]) -> None:
    """Have schedulers begin anew and take the steps that they took since then."""
    taken = [_steps(one) - begun for one, (begun, _) in zip(stepped, fresh, strict=True)]
    for scheduler, (_, state) in zip(stepped, fresh, strict=True):
        scheduler.load_state_dict(state)
    with warnings.catch_warnings(action="ignore"):  # The optimizer took its steps before it was saved.
        for step in range(max(taken, default=0)):
            for scheduler, steps in zip(stepped, taken, strict=True):
                if step < steps:
                    scheduler.step()


def _settings(optimizer: Any, group: Mapping[str, Any]) -> dict[str, Any]:
    """Return the hyperparameters of a parameter group: some optimizers keep a part of their state there too."""
    # A subclass may hand on what it does not name, as **kwargs.
    makers = [vars(kind)["__init__"] for kind in type(optimizer).__mro__ if "__init__" in vars(kind)]
    arguments = {name for maker in makers for name in inspect.signature(maker).parameters}
    state = {*optimizer.defaults} - arguments if "lr" in arguments else set()
    return {name: copy.deepcopy(group[name]) for name in {*group} - state - {"params", "param_names"}}


def _steps(scheduler: Any) -> int:
    """Return how many steps a scheduler took; a ChainedScheduler does not count its own."""
    return scheduler.last_epoch if hasattr(scheduler, "last_epoch") else _steps(scheduler._schedulers[0])


def load(trial: Trial, **objects: Any) -> None:
    """Load what `save` saved, and keep the hyperparameters that the optimizers were just made with.

    Make the optimizers, and then their schedulers, with the hyperparameters of the trial. Progress of an earlier
    attempt comes back as it was, with the random number generators of PyTorch, NumPy and Python. Other checkpoints
    leave these alone: seed them with `trial.seed` before you make the model. Does nothing at a fresh start.

    Args:
        trial: the trial.
        objects: model, optimizers, schedulers, and what else has a `state_dict`, by the names that `save` gets.

    Raises:
        ConfigurationError: the checkpoint has no state of that name.
    """
    states = {} if trial.source is None else _read(trial.source.path / FILE, objects)
    kept = objects.values() if trial.progress is None else ()
    with keep_hyperparameters(*kept):
        for name, one in objects.items() if states else ():
            one.load_state_dict(states[name])
    if trial.progress is not None:
        restore_random(states[RANDOM])


def save(trial: Trial, **objects: Any) -> bool:
    """Save the states of a model, its optimizers and more as the trial's checkpoint, after `trial.steps()` ended.

    When the trial should stop, as after Ctrl-C, what was trained so far is committed as progress, from which the
    next attempt goes on. Inside the loop, call `trial.save_progress()` after it.

    Args:
        trial: the trial.
        objects: what `load` gets, under the same names.

    Returns:
        Whether the trial was trained to its end. If not, it goes back to the queue: return.
    """
    import torch

    session = session_of(trial)
    if trial.stop_reason is None:
        states = {name: one.state_dict() for name, one in objects.items()}
        torch.save({**states, RANDOM: random_state()}, trial.checkpoint_dir / FILE)
        if session.interrupted:
            trial.save_progress()
    return not session.interrupted


def _read(file: Path, objects: Mapping[str, Any]) -> dict[str, Any]:
    """Return what `save` wrote into a file."""
    import torch

    if not file.is_file():
        there = ", ".join(sorted(entry.name for entry in file.parent.iterdir()))
        raise ConfigurationError(f"{file} is not there; the checkpoint has {there}. Save it with save(trial, ...)")
    states: dict[str, Any] = torch.load(file, map_location="cpu")
    lacking = ", ".join(sorted(objects.keys() - states.keys()))
    if lacking:
        raise ConfigurationError(f"{file} has {', '.join(states)}, but no {lacking}; save it, too")
    return states
