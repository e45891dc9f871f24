"""Checkpoints of a JAX program, saved by Orbax in the background, and hyperparameters in the states of Optax."""

from types import TracebackType
from typing import Any, final

from phyla.errors import ConfigurationError
from phyla.worker.trial import Trial, session_of

__all__ = ["OrbaxCheckpoint"]

FOLDER = "state"


@final
class OrbaxCheckpoint:
    """The checkpoint of a trial, for a `with` block around its training.

    Orbax saves while the program goes on; the end of the block waits until everything is on disk, so that phyla
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

        What `optax.inject_hyperparams` keeps in the state of an optimizer is taken from the state that is given,
        which was made with the hyperparameters of the trial, not from the checkpoint. Progress of an earlier
        attempt comes back as it was.

        Args:
            state: a fresh state, any pytree of arrays and numbers; its shapes are those of the checkpoint.

        Returns:
            It, at a fresh start; else what the checkpoint has.

        Raises:
            ConfigurationError: the checkpoint was not saved by `save`.
        """
        source = self._trial.source
        if source is None:
            return state
        if not (source.path / FOLDER).is_dir():
            there = ", ".join(sorted(entry.name for entry in source.path.iterdir()))
            raise ConfigurationError(f"{source.path / FOLDER} is not there; the checkpoint has {there}")
        restored = self._checkpointer.restore(source.path / FOLDER, state)
        return restored if self._trial.progress is not None else _with_own(restored, state)

    def save(self, state: Any) -> bool:
        """Save the state, after `trial.steps()` ended, in the background.

        When the trial should stop, as after Ctrl-C, it is committed as progress, from which the next attempt goes
        on.

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


def _with_own(restored: Any, made: Any) -> Any:
    """Return a restored state with the hyperparameters that Optax injected into another one."""
    import jax

    def is_injected(node: Any) -> bool:
        return hasattr(node, "_replace") and {"hyperparams", "inner_state"} <= set(node._fields)

    def own(old: Any, new: Any) -> Any:
        if not is_injected(old):
            return old
        return old._replace(hyperparams=new.hyperparams, inner_state=_with_own(old.inner_state, new.inner_state))

    return jax.tree.map(own, restored, made, is_leaf=is_injected)
