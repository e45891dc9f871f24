"""Checkpoints of a PyTorch training loop, and hyperparameters in its optimizers and learning rate schedulers.

`optimizer.load_state_dict` restores the hyperparameters of the trial that saved the state, its learning rate among
them, and a scheduler whose state was loaded restores that rate at its next step. So a trial sets its own
hyperparameters after loading; `load` does.
"""

import copy
import math
import warnings
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from phyla.errors import ConfigurationError
from phyla.worker.trial import Trial, session_of

if TYPE_CHECKING:
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler

__all__ = ["load", "save", "set_hyperparameters"]

FILE = "state.pt"
"""What `save` writes into a checkpoint, and `load` reads."""

Number: TypeAlias = float
Betas: TypeAlias = tuple[float, float]

_CLOSED_FORM = (
    *("StepLR", "MultiStepLR", "ConstantLR", "LinearLR", "ExponentialLR", "PolynomialLR"),
    "CosineAnnealingLR",
)
_SINGLE = (*_CLOSED_FORM, "LambdaLR", "MultiplicativeLR", "CosineAnnealingWarmRestarts")
_WAY_OUT: Mapping[str, str] = {
    "OneCycleLR": "it computes the rate from max_lr, initial_lr and min_lr of the parameter groups; leave lr= out "
    "and set those, which its next step uses: set_hyperparameters(optimizer, scheduler, max_lr=..., "
    "initial_lr=..., min_lr=...)",
    "CyclicLR": "it computes the rate from base_lrs and max_lrs of its own; leave lr= out and assign those",
}
_UNKNOWN = (
    "phyla does not know where it keeps its base rate; leave lr= out and set the rate in the scheduler itself, "
    "which otherwise restores the old one at its next step"
)


def set_hyperparameters(
    optimizer: "Optimizer",
    scheduler: "LRScheduler | None" = None,
    *,
    lr: Number | Sequence[Number] | None = None,
    weight_decay: Number | Sequence[Number] | None = None,
    betas: Betas | Sequence[Betas] | None = None,
    momentum: Number | Sequence[Number] | None = None,
    **others: Any,
) -> dict[str, list[Any]]:
    """Set hyperparameters of an optimizer, and of its learning rate scheduler, after their states were loaded.

    A single value is set in every parameter group, also where the groups had different ones. A list gives one
    value per group. `lr` is the base rate, the one that an optimizer is made with: with a scheduler, the current
    rate becomes the one that a new optimizer and scheduler with this base rate would have reached after as many
    steps of the scheduler. `ReduceLROnPlateau` has no base rate; it goes on reducing from `lr`.

    If an error is raised, nothing was set.

    Args:
        optimizer: the optimizer, after `load_state_dict`.
        scheduler: its scheduler, after `load_state_dict`, if there is one.
        lr: the base learning rate, at least 0.
        weight_decay: the weight decay.
        betas: the two decay rates of Adam and its kin.
        momentum: the momentum of SGD and RMSprop.
        others: any other key that the parameter groups have, such as `eps`.

    Returns:
        What was set, one value per parameter group; `lr` is the current rate, and `initial_lr` the base rate
        where a scheduler uses it.

    Raises:
        ConfigurationError: a parameter group has no such hyperparameter, the scheduler would undo what was set,
            or a value makes no sense. The message names the keys of the groups, or the type of the scheduler.
    """
    import torch

    groups = optimizer.param_groups
    named = {"lr": lr, "weight_decay": weight_decay, "betas": betas, "momentum": momentum, **others}
    given = {name: value for name, value in named.items() if value is not None}
    if not given:
        raise ConfigurationError(
            "set_hyperparameters() was given no hyperparameter, such as lr=trial.params['lr']"
        )
    wanted = {name: _per_group(name, value, groups) for name, value in given.items()}
    for name in sorted({"momentum", "betas"} & wanted.keys()):
        for one in _flat(scheduler):
            if getattr(one, "cycle_momentum", False):
                raise ConfigurationError(
                    f"{name} cannot be set with {type(one).__name__}, which computes it at every step; make it "
                    f"with cycle_momentum=False, or leave {name}= out. Nothing was set"
                )
    if "lr" in wanted:
        bases = [_checked_rate(value) for value in wanted["lr"]]
        if scheduler is not None:
            _check(scheduler, len(groups))
        wanted["lr"] = bases if scheduler is None else _rates(scheduler, bases)
        if scheduler is not None or any("initial_lr" in group for group in groups):
            wanted["initial_lr"] = bases
        if scheduler is None and hasattr(optimizer.step, "_wrapped_by_lr_sched"):
            warnings.warn(
                "a learning rate scheduler was made for this optimizer, and its next step restores the old "
                "learning rate; write set_hyperparameters(optimizer, scheduler, ...)",
                UserWarning,
                stacklevel=2,
            )
        for one in _flat(scheduler):
            if hasattr(one, "base_lrs"):
                one.base_lrs = [
                    torch.full_like(old, base) if isinstance(old, torch.Tensor) else base
                    for old, base in zip(one.base_lrs, bases, strict=True)
                ]
            one._last_lr = list(wanted["lr"])
    for name, values in wanted.items():
        for group, value in zip(groups, values, strict=True):
            if isinstance(group.get(name), torch.Tensor):
                # Compiled and captured optimizers need it in that tensor.
                group[name].fill_(value)
            else:
                group[name] = value
    return wanted


def load(trial: Trial, **objects: Any) -> None:
    """Load what `save` saved, and set the hyperparameters that the optimizers were just made with.

    Make the optimizers, and then their schedulers, with the hyperparameters of the trial. Progress of an earlier
    attempt comes back as it was, the states of the random number generators of PyTorch, NumPy and Python included.
    Other checkpoints leave the generators alone, so that members with one parent can differ: seed them with
    `trial.seed` before the model is made. Does nothing at a fresh start.

    Args:
        trial: the trial.
        objects: model, optimizers, schedulers, and whatever else has `state_dict` and `load_state_dict`, under the
            names that `save` gets.

    Raises:
        ConfigurationError: the checkpoint has no state of that name, or a changed hyperparameter cannot be set
            with the scheduler, as in `set_hyperparameters`.
    """
    import torch

    _check_objects("load", objects)
    if trial.source is None:
        return
    file = trial.source.path / FILE
    if not file.is_file():
        there = ", ".join(sorted(entry.name for entry in trial.source.path.iterdir()))
        raise ConfigurationError(f"{file} is not there; the checkpoint has {there}. Save it with save(trial, ...)")
    made = {name: made_with(one) for name, one in objects.items() if isinstance(one, torch.optim.Optimizer)}
    states = torch.load(file, map_location="cpu")
    missing = objects.keys() - states.keys()
    if missing:
        raise ConfigurationError(
            f"{file} has {', '.join(states)}, but no {', '.join(sorted(missing))}; give save() and load() the "
            "same names"
        )
    for name, one in objects.items():
        one.load_state_dict(states[name])
    if trial.progress is not None:
        restore_random(states["random"])
        return
    for name, values in made.items():
        kind = torch.optim.lr_scheduler.LRScheduler
        its = [one for one in objects.values() if isinstance(one, kind) and one.optimizer is objects[name]]
        set_again(objects[name], its, values)


def save(trial: Trial, **objects: Any) -> bool:
    """Save the states of a model, its optimizers and more as the trial's checkpoint, after `trial.steps()` ended.

    When the trial should stop, as after Ctrl-C, what was trained so far is committed as progress, from which the
    next attempt goes on. Inside the loop, call `trial.save_progress()` after it.

    Args:
        trial: the trial.
        objects: what `load` gets, under the same names.

    Returns:
        Whether the trial was trained to its end. If not, it goes back to the queue: return.

    Raises:
        ConfigurationError: an object has no `state_dict` or no `load_state_dict`.
    """
    import torch

    _check_objects("save", objects)
    session = session_of(trial)
    if trial.stop_reason is None:
        states = {name: one.state_dict() for name, one in objects.items()}
        torch.save({**states, "random": random_state()}, trial.checkpoint_dir / FILE)
        if session.interrupted:
            trial.save_progress()
    return not session.interrupted


def _check_objects(function: str, objects: Mapping[str, Any]) -> None:
    for name, one in objects.items():
        if name == "random" or not (hasattr(one, "state_dict") and hasattr(one, "load_state_dict")):
            raise ConfigurationError(
                f"{function}({name}={type(one).__name__}): give objects with state_dict and load_state_dict, as "
                f"{function}(trial, model=model, optimizer=optimizer); the name random is taken"
            )


def random_state() -> dict[str, Any]:
    """Return the states of all random number generators, which `torch.load` reads without more trust."""
    import random  # noqa: TID251  # the user's code may draw from it

    import numpy as np
    import torch

    name, keys, *rest = np.random.get_state()  # noqa: NPY002  # the user's code may draw from it
    used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]  # PyTorch's is not annotated
    cuda = torch.cuda.get_rng_state_all() if used else []
    numpy = (name, torch.from_numpy(np.asarray(keys, dtype=np.int64)), *rest)
    return {"python": random.getstate(), "numpy": numpy, "torch": torch.get_rng_state(), "cuda": cuda}


def restore_random(state: Mapping[str, Any]) -> None:
    """Set all random number generators to what `random_state` returned."""
    import random  # noqa: TID251

    import numpy as np
    import torch

    random.setstate(state["python"])
    name, keys, *rest = state["numpy"]
    np.random.set_state((name, keys.numpy(), *rest))  # noqa: NPY002
    torch.set_rng_state(state["torch"])
    if state["cuda"] and torch.cuda.device_count() == len(state["cuda"]):
        torch.cuda.set_rng_state_all(state["cuda"])


def made_with(optimizer: "Optimizer") -> dict[str, list[Any]]:
    """Return the hyperparameters of an optimizer, one value per parameter group; `lr` is the base rate."""
    groups = [{**group, "lr": group.get("initial_lr", group["lr"])} for group in optimizer.param_groups]
    names = set.intersection(*({*group} for group in groups)) - {"params", "param_names"}
    return {name: [copy.copy(group[name]) for group in groups] for name in sorted(names)}


def set_again(optimizer: "Optimizer", schedulers: Sequence[Any], made: Mapping[str, list[Any]]) -> None:
    """Set the hyperparameters that an optimizer was made with, where those that were loaded differ."""
    loaded = made_with(optimizer)
    changed = {name: made[name] for name in loaded.keys() & made.keys() if made[name] != loaded[name]}
    if "max_lr" not in loaded:
        changed.pop("initial_lr", None)  # set with lr
    else:
        changed.pop("lr", None)  # OneCycleLR computes it from the others
    if any(getattr(one, "cycle_momentum", False) for part in schedulers for one in _flat(part)):
        changed = {name: value for name, value in changed.items() if name not in ("momentum", "betas")}
    if len(schedulers) > 1 and "lr" in changed:
        names = " and ".join(type(one).__name__ for one in schedulers)
        raise ConfigurationError(
            f"lr cannot be set with {names} on one optimizer; make one of them, such as a ChainedScheduler"
        )
    if changed:
        set_hyperparameters(optimizer, schedulers[0] if schedulers else None, **changed)


def _per_group(name: str, value: Any, groups: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Return the value of one hyperparameter for each group."""
    for index, group in enumerate(groups):
        # A scheduler and the optimizer's groups agree on initial_lr; only OneCycleLR reads it from there.
        known = sorted({*group} - {"params"} - (set() if "max_lr" in group else {"initial_lr"}))
        if name not in known:
            raise ConfigurationError(
                f"{name}={value!r}: parameter group {index} of the optimizer has no {name!r}; it has "
                f"{', '.join(known)}. Nothing was set"
            )
    pairs = isinstance(groups[0][name], (tuple, list))
    listed = isinstance(value, (tuple, list)) and (
        not pairs or any(isinstance(one, (tuple, list)) for one in value)
    )
    values = list(value) if listed else [value] * len(groups)
    if len(values) != len(groups):
        raise ConfigurationError(
            f"{name}={value!r}: {len(values)} values for {len(groups)} parameter groups; give one value for all "
            "groups, or one for each. Nothing was set"
        )
    return [tuple(one) if pairs else one for one in values]


def _checked_rate(value: Any) -> float:
    try:
        rate = float(value)
    except (TypeError, ValueError):
        rate = math.nan
    if not (math.isfinite(rate) and rate >= 0):
        raise ConfigurationError(f"lr={value!r}: must be a finite number of at least 0. Nothing was set")
    return rate


def _flat(scheduler: Any) -> Iterator[Any]:
    """Yield a scheduler and those that it is made of."""
    if scheduler is not None:
        yield scheduler
        for part in getattr(scheduler, "_schedulers", ()):
            yield from _flat(part)


def _check(scheduler: Any, groups: int, whole: Any = None) -> None:
    """Refuse a scheduler, perhaps a part of another one, whose rate does not follow from base rates as known."""
    # Subclasses of PyTorch's compute what they like.
    ours = type(scheduler).__module__ == "torch.optim.lr_scheduler"
    kind, inside = type(scheduler).__name__ if ours else "", type(whole).__name__ if whole else ""
    known = getattr(scheduler, "base_lrs", None)
    if known is not None and len(known) != groups:
        raise ConfigurationError(
            f"the scheduler {type(scheduler).__name__} has {len(known)} base rates and the optimizer {groups} "
            "parameter groups; pass the scheduler of this optimizer. Nothing was set"
        )
    why = None
    if inside == "ChainedScheduler":
        past = getattr(scheduler, "eta_min", 0) != 0 or scheduler.last_epoch > getattr(
            scheduler, "T_max", math.inf
        )
        if kind not in (*_CLOSED_FORM, "MultiplicativeLR") or past:
            why = "it does more than to multiply the rate by a factor; leave lr= out"
    elif inside and kind == "MultiplicativeLR" and scheduler is not whole._schedulers[0]:
        why = "it goes on from the rate of the one before; leave lr= out"
    elif kind not in (_SINGLE if inside else (*_SINGLE, "ReduceLROnPlateau", "SequentialLR", "ChainedScheduler")):
        why = _WAY_OUT.get(kind, _UNKNOWN)
    if why is not None:
        name = kind or f"{type(scheduler).__module__}.{type(scheduler).__name__}"
        where = f"{name} in {inside}" if inside else name
        raise ConfigurationError(f"lr cannot be set with the scheduler {where}: {why}. Nothing was set")
    for part in getattr(scheduler, "_schedulers", ()):
        _check(part, groups, scheduler)


def _rates(scheduler: Any, bases: list[float]) -> list[float]:
    """Return the current rate of each group under a scheduler whose base rates are these."""
    kind = type(scheduler).__name__
    if kind == "ReduceLROnPlateau":
        return bases
    if kind == "SequentialLR":
        return _rates(scheduler._schedulers[bisect_right(scheduler._milestones, scheduler.last_epoch)], bases)
    if kind == "ChainedScheduler":
        factors = [_rates(part, [1.0] * len(bases)) for part in scheduler._schedulers]
        return [base * math.prod(its) for base, its in zip(bases, zip(*factors, strict=True), strict=True)]
    if kind in ("LambdaLR", "MultiplicativeLR"):
        last = scheduler.last_epoch
        epochs = [last] if kind == "LambdaLR" else range(1, last + 1)
        made = [math.prod(factor(epoch) for epoch in epochs) for factor in scheduler.lr_lambdas]
        return [base * factor for base, factor in zip(bases, made, strict=True)]
    if kind == "CosineAnnealingWarmRestarts":
        low = scheduler.eta_min
        share = (1 + math.cos(math.pi * scheduler.T_cur / scheduler.T_i)) / 2
        return [low + (base - low) * share for base in bases]
    probe = copy.copy(scheduler)
    probe.base_lrs = bases
    return [float(rate) for rate in probe._get_closed_form_lr()]
