"""Saves and loads checkpoints of a PyTorch training loop, and keeps hyperparameters when loading."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from phyla.errors import ConfigurationError
from phyla.integrations.hyperparameters import keep_hyperparameters
from phyla.integrations.random_states import random_state, restore_random
from phyla.worker.training.trial import Trial, session_of

__all__ = ["keep_hyperparameters", "load", "save"]

RANDOM = "phyla.random"


def load(trial: Trial, **objects: Any) -> None:
    """Load what `save` saved, but keep the hyperparameters that the optimizers were just created with.

    Create the optimizers, and then their schedulers, with the hyperparameters of the trial. Progress of an earlier
    attempt is restored unchanged, with the random number generators of PyTorch, NumPy and Python. Other
    checkpoints do not change the generators: seed them with `trial.seed` before you create the model. Does nothing
    at a fresh start.

    Args:
        trial: the trial.
        objects: model, optimizers, schedulers, and what else has a `state_dict`, by the names that `save` gets.

    Raises:
        ConfigurationError: the checkpoint has no state of that name.
    """
    states = {} if trial.source is None else _read(trial.source.path / _file(trial), objects)
    preserved = objects.values() if trial.progress is None else ()
    with keep_hyperparameters(*preserved):
        for name, stateful in objects.items() if states else ():
            stateful.load_state_dict(states[name])
    if trial.progress is not None:
        restore_random(states[RANDOM])


def save(trial: Trial, **objects: Any) -> bool:
    """Save the states of a model, its optimizers and more as the trial's checkpoint, after `trial.steps()` ended.

    If the trial should stop, for example after Ctrl-C, the state is committed as progress, from which the next
    attempt continues. Inside the loop, call `trial.save_progress()` after it. Ranks of `shared_trials` save a file
    each, so all of them call it.

    Args:
        trial: the trial.
        objects: what `load` gets, under the same names.

    Returns:
        Whether the trial was trained to its end. If not, it goes back to the queue: return.
    """
    import torch

    session = session_of(trial)
    if trial.stop_reason is None:
        states = {name: stateful.state_dict() for name, stateful in objects.items()}
        torch.save({**states, RANDOM: random_state()}, trial.checkpoint_dir / _file(trial))
        if session.interrupted:
            trial.save_progress()
    return not session.interrupted


def _file(trial: Trial) -> str:
    """Return the name of the file: ranks have different random numbers, and perhaps parts of the weights."""
    rank = session_of(trial).rank
    return "state.pt" if rank is None else f"state-rank{rank}.pt"


def _read(file: Path, objects: Mapping[str, Any]) -> dict[str, Any]:
    """Return what `save` wrote into a file."""
    import torch

    if not file.is_file():
        there = ", ".join(sorted(entry.name for entry in file.parent.iterdir()))
        raise ConfigurationError(
            f"{file} is missing; the checkpoint has {there}. Save it with save(trial, ...), on as many ranks"
        )
    states: dict[str, Any] = torch.load(file, map_location="cpu")
    lacking = ", ".join(sorted(objects.keys() - states.keys()))
    if lacking:
        raise ConfigurationError(f"{file} has {', '.join(states)}, but no {lacking}; save it, too")
    return states
