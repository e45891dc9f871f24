"""Checkpoints of a JAX program, saved by Orbax in the background, and hyperparameters in Optax states."""

import math
import re
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, final

from phyla.errors import ConfigurationError
from phyla.worker.training.trial import Trial, session_of

__all__ = ["OrbaxCheckpoint"]

FOLDER = "state"


@final
class OrbaxCheckpoint:
    """The checkpoint of a trial, for a `with` block around its training.

    Orbax saves while the program continues; the end of the block waits until everything is on disk, so that phyla
    never commits half a checkpoint.
    """

    def __init__(self, trial: Trial) -> None:
        self._trial = trial
        self._session = session_of(trial)

    def __enter__(self) -> "OrbaxCheckpoint":
        import orbax.checkpoint as ocp

        self._checkpointer: Any = ocp.StandardCheckpointer()
        return self

    def load(self, state: Any) -> Any:
        """Return the state to train from.

        Hyperparameters of `optax.inject_hyperparams`, anywhere in the state, are taken from the given state, which
        was created with the hyperparameters of the trial, not from the checkpoint. Progress of an earlier attempt
        is restored unchanged.

        Args:
            state: a fresh state, any pytree of arrays and numbers; its shapes are those of the checkpoint.

        Returns:
            The given state at a fresh start, else the state of the checkpoint.

        Raises:
            ConfigurationError: the checkpoint was not saved by `save`, or its numbers have no names that identify
                hyperparameters.
        """
        source = self._trial.source
        if source is None:
            return state
        if not (source.path / FOLDER).is_dir():
            there = ", ".join(sorted(entry.name for entry in source.path.iterdir()))
            raise ConfigurationError(f"{source.path / FOLDER} is missing; the checkpoint has {there}")
        restored = self._checkpointer.restore(source.path / FOLDER, state)
        return (
            restored
            if self._trial.progress is not None
            else _with_own(restored, state, self._session.record.params)
        )

    def save(self, state: Any) -> bool:
        """Save the state, after `trial.steps()` ended, in the background.

        If the trial should stop, for example after Ctrl-C, the state is committed as progress, from which the next
        attempt continues.

        Args:
            state: any pytree of arrays and numbers.

        Returns:
            Whether the trial was trained to its end. If not, it goes back to the queue: return.
        """
        if self._session.interrupted:
            if self._trial.stop_reason is None:
                self.save_progress(state)
            return False
        self._checkpointer.save(self._trial.checkpoint_dir / FOLDER, state)
        return True

    def save_progress(self, state: Any) -> None:
        """Save the state, wait until it is on disk, and commit it as progress."""
        self._checkpointer.save(self._trial.checkpoint_dir / FOLDER, state)
        self._checkpointer.wait_until_finished()
        self._trial.save_progress()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._checkpointer.wait_until_finished()
        finally:
            self._checkpointer.close()


def _with_own(restored: Any, initial: Any, params: Mapping[str, Any]) -> Any:
    """Return a restored state with the hyperparameters that Optax injected into another one, in any pytree."""
    import jax

    leaves, structure = jax.tree_util.tree_flatten_with_path(restored)
    fresh = {_names(path): leaf for path, leaf in jax.tree_util.tree_flatten_with_path(initial)[0]}
    # Optax counts the updates beside them.
    counted = {path[:at] for path in fresh for at, name in enumerate(path) if name == "count"}
    done = []
    for key, old in leaves:
        path = _names(key)
        new = fresh.get(path, old)
        injected = any(name == "hyperparams" and path[:at] in counted for at, name in enumerate(path))
        if not injected and not any(isinstance(name, str) for name in path):
            _refuse_nameless(jax.tree_util.keystr(key), old, new, params)
        done.append(new if injected else old)
    return jax.tree_util.tree_unflatten(structure, done)


def _names(path: Sequence[Any]) -> tuple[Any, ...]:
    """Return the path to a leaf: names of fields and keys, also joined ones, and indices."""
    parts: list[Any] = []
    for entry in path:
        key = getattr(entry, "name", getattr(entry, "key", getattr(entry, "idx", None)))
        for part in key if isinstance(key, tuple) else (key,):
            parts += re.split(r"[./]", part) if isinstance(part, str) else [part]
    return tuple(parts)


def _refuse_nameless(where: str, old: Any, new: Any, params: Mapping[str, Any]) -> None:
    """Reject an unnamed number of the parent where the fresh state has a hyperparameter."""
    import jax.numpy as jnp

    if getattr(new, "shape", ()) != () or not jnp.issubdtype(getattr(new, "dtype", type(new)), jnp.floating):
        return
    for name, value in params.items():
        if old != new and isinstance(value, float) and value % 1 and math.isclose(new, value, rel_tol=1e-6):
            raise ConfigurationError(
                f"state{where} is {name}={value:.6g} in the fresh state and {float(old):.6g} in the checkpoint, "
                "and has no name, so load() cannot know whether Optax injected it; load and save the state "
                "itself, not a list of its leaves"
            )
