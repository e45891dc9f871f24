"""Keeps the hyperparameters of PyTorch's optimizers and schedulers when states are loaded.

`optimizer.load_state_dict` restores the hyperparameters of the trial that saved the state, its learning rate among
them, and a scheduler whose state was loaded restores that rate at its next step.
"""

import copy
import inspect
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from phyla.errors import ConfigurationError

__all__ = ["keep_hyperparameters"]


@contextmanager
def keep_hyperparameters(*objects: Any) -> Iterator[None]:
    """Keep the hyperparameters of optimizers and learning rate schedulers while their states are loaded.

    ```python
    optimizer = torch.optim.AdamW(model.parameters(), lr=trial.params["lr"])
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10_000)
    with keep_hyperparameters(optimizer, scheduler):
        optimizer.load_state_dict(...)
        scheduler.load_state_dict(...)
    ```

    The optimizers then have the loaded averages, and their own hyperparameters in every parameter group. Each
    scheduler restarts and repeats the steps of the saved one, about 100,000 a second, so its rate is the one that
    it reaches from its own start. Create schedulers before the block, not after it.

    `ReduceLROnPlateau`, as the only scheduler of an optimizer, keeps the factor by which it reduced. For that, run
    the `with` block at a fresh start, too, with nothing to load.

    Args:
        objects: optimizers and all their schedulers, also wrapped by Accelerate, DeepSpeed or Fabric; anything
            else is ignored.
    """
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

    objects = tuple(map(_unwrapped, objects))
    schedulers = [item for item in objects if isinstance(item, LRScheduler)]
    stepped = [scheduler for scheduler in schedulers if not isinstance(scheduler, ReduceLROnPlateau)]
    fresh = [(_steps(scheduler), copy.deepcopy(scheduler.state_dict())) for scheduler in stepped]
    snapshots = []
    for optimizer in (item for item in objects if isinstance(item, Optimizer)):
        own = [scheduler for scheduler in schedulers if _unwrapped(scheduler.optimizer) is optimizer]
        reducing = bool(own) and not any(scheduler in stepped for scheduler in own)
        for group in optimizer.param_groups if reducing else ():
            group.setdefault("initial_lr", group["lr"])
        if not own and hasattr(optimizer.step, "_wrapped_by_lr_sched"):
            warnings.warn("pass the optimizer's scheduler, too: its next step restores the old rate", stacklevel=3)
        snapshots.append((optimizer, [_settings(optimizer, group) for group in optimizer.param_groups], reducing))
    try:
        yield
    finally:
        for optimizer, settings, reducing in snapshots:
            _restore(optimizer, settings, reducing=reducing)
        _repeat(stepped, fresh)


def _unwrapped(item: Any) -> Any:
    """Return the optimizer or scheduler of PyTorch in the wrappers of Accelerate, DeepSpeed and Fabric."""
    from torch.optim.lr_scheduler import LRScheduler

    while hasattr(item, "param_groups") and hasattr(item, "optimizer"):
        item = item.optimizer
    inner = getattr(item, "scheduler", None)
    return inner if isinstance(inner, LRScheduler) else item


def _restore(optimizer: Any, settings: Sequence[Mapping[str, Any]], *, reducing: bool) -> None:
    """Restore the hyperparameters of the parameter groups."""
    groups = optimizer.param_groups
    if len(groups) != len(settings):
        raise ConfigurationError(
            f"keep_hyperparameters() noted {len(settings)} parameter groups of an optimizer that has "
            f"{len(groups)} now: call add_param_group() before it"
        )
    for group, own in zip(groups, settings, strict=True):
        for name in ("amsgrad", "centered"):
            if own.get(name) and not group.get(name):
                raise ConfigurationError(
                    f"the optimizer was made with {name}=True, and the state that it loaded with {name}=False, so "
                    f"averages are missing; give {name} the same value in all trials"
                )
        loaded = group.pop("initial_lr", None)
        lr = own["initial_lr"] * (group["lr"] / loaded) if reducing and loaded else own["lr"]
        group.update({**own, "lr": lr})


def _repeat(stepped: Sequence[Any], fresh: Sequence[tuple[int, Any]]) -> None:
    """Restart schedulers and repeat their steps."""
    counts = [_steps(scheduler) - begun for scheduler, (begun, _) in zip(stepped, fresh, strict=True)]
    for scheduler, (_, state) in zip(stepped, fresh, strict=True):
        scheduler.load_state_dict(state)
    with warnings.catch_warnings(action="ignore"):  # The optimizer took its steps before it was saved.
        for step in range(max(counts, default=0)):
            for scheduler, steps in zip(stepped, counts, strict=True):
                if step < steps:
                    scheduler.step()


def _settings(optimizer: Any, group: Mapping[str, Any]) -> dict[str, Any]:
    """Return the hyperparameters of a parameter group: some optimizers keep part of their state there, too."""
    # A subclass may pass on unnamed arguments as **kwargs.
    makers = [vars(kind)["__init__"] for kind in type(optimizer).__mro__ if "__init__" in vars(kind)]
    arguments = {name for maker in makers for name in inspect.signature(maker).parameters}
    state = {*optimizer.defaults} - arguments if "lr" in arguments else set()
    return {name: copy.deepcopy(group[name]) for name in {*group} - state - {"params", "param_names"}}


def _steps(scheduler: Any) -> int:
    """Return how many steps a scheduler took; a ChainedScheduler does not count its own."""
    return scheduler.last_epoch if hasattr(scheduler, "last_epoch") else _steps(scheduler._schedulers[0])
