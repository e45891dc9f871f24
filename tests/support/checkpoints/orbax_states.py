"""States of JAX that Orbax saves and loads, whose learning rates children get, and what is read of files.

Run as a program, it prints JSON: what it tried, by name.

A process of pytest never imports JAX.
"""

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

import equinox
import flax
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from flax.training.train_state import TrainState

import phyla
from phyla.errors import ConfigurationError
from phyla.integrations.jax import OrbaxCheckpoint
from phyla.study.checking.checkpoint_contents import read

sgd, adam = optax.inject_hyperparams(optax.sgd), optax.inject_hyperparams(optax.adam)
WEIGHTS = {"a": jnp.ones(2), "b": jnp.ones(3)}


class Held(NamedTuple):
    weights: Any
    held: Any


class Module(equinox.Module):
    linear: equinox.nn.Linear
    state: Any


@jax.tree_util.register_pytree_node_class
class Bare:
    """A pytree whose children have no names."""

    def __init__(self, *children: Any) -> None:
        self.children = children

    def tree_flatten(self) -> tuple[tuple[Any, ...], None]:
        return self.children, None

    @classmethod
    def tree_unflatten(cls, _: None, children: Any) -> "Bare":
        return cls(*children)


def chained(lr: float) -> Any:
    return optax.chain(optax.clip(1.0), optax.chain(optax.scale_by_adam(), sgd(learning_rate=lr)))


def labelled(lr: float) -> Any:
    return optax.multi_transform({"x": adam(learning_rate=lr), "y": optax.sgd(0.5)}, {"a": "x", "b": "y"})


def nnx_state(lr: float) -> Any:
    class Net(nnx.Module):
        def __init__(self) -> None:
            self.linear, self.dropout = nnx.Linear(2, 1, rngs=nnx.Rngs(0)), nnx.Dropout(0.5, rngs=nnx.Rngs(1))

    model = Net()
    optimizer = nnx.Optimizer(model, optax.chain(optax.clip(1.0), adam(learning_rate=lr)), wrt=nnx.Param)
    return nnx.state((model, optimizer))


def equinox_state(lr: float) -> Any:
    linear = equinox.nn.Linear(2, 1, key=jax.random.key(0))
    return Module(linear, sgd(learning_rate=lr).init(equinox.filter(linear, equinox.is_array)))


def scheduled(lr: float) -> Any:
    return optax.inject_hyperparams(optax.sgd)(learning_rate=optax.cosine_decay_schedule(lr, 100), momentum=lr)


STATES: dict[str, Any] = {
    "a named tuple": lambda lr: Held(WEIGHTS, sgd(learning_rate=lr).init(WEIGHTS)),
    "a mapping": lambda lr: {"weights": WEIGHTS, "opt_state": adam(learning_rate=lr).init(WEIGHTS)},
    "a bare state": lambda lr: sgd(learning_rate=lr).init(WEIGHTS),
    "nested chains": lambda lr: {"opt_state": chained(lr).init(WEIGHTS)},
    "multi_transform": lambda lr: (WEIGHTS, labelled(lr).init(WEIGHTS)),
    "masked": lambda lr: [optax.masked(sgd(learning_rate=lr), {"a": True, "b": False}).init(WEIGHTS)],
    "accumulated": lambda lr: {"o": optax.MultiSteps(adam(learning_rate=lr), 3).init(WEIGHTS)},
    "finite": lambda lr: {"o": optax.apply_if_finite(sgd(learning_rate=lr), 3).init(WEIGHTS)},
    "injected twice": lambda lr: optax.chain(sgd(learning_rate=lr), adam(learning_rate=lr)).init(WEIGHTS),
    "beside a schedule": lambda lr: {"o": scheduled(lr).init(WEIGHTS)},
    "an old state of Optax": lambda lr: optax.InjectHyperparamsState(
        jnp.zeros([], jnp.int32), {"learning_rate": jnp.asarray(lr)}, optax.EmptyState()
    ),
    "Flax's TrainState": lambda lr: TrainState.create(apply_fn=None, params=WEIGHTS, tx=chained(lr)),
    "Flax NNX": nnx_state,
    "Flax NNX, pure": lambda lr: nnx.to_pure_dict(nnx_state(lr)),
    "Flax NNX, flat": lambda lr: dict(nnx.to_flat_state(nnx_state(lr))),
    "joined names": lambda lr: flax.traverse_util.flatten_dict(
        flax.serialization.to_state_dict(adam(learning_rate=lr).init(WEIGHTS)), sep="/"
    ),
    "Equinox": equinox_state,
    "a pytree without names": lambda lr: Bare(WEIGHTS, sgd(learning_rate=lr).init(WEIGHTS)),
    "a list of leaves": lambda lr: jax.tree.leaves(adam(learning_rate=lr).init(WEIGHTS)),
}


def is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def injected(state: Any) -> Any:
    """Return what was injected, by path, and the other numbers."""
    known: dict[str, list[float]] = {"hyperparams": [], "others": []}
    for path, leaf in jax.tree_util.tree_flatten_with_path(state)[0]:
        if is_key(leaf):
            continue
        name = jax.tree_util.keystr(path)
        is_rate = "hyperparams" in name and "hyperparams_states" not in name
        known["hyperparams" if is_rate else "others"] += np.ravel(np.asarray(leaf, float)).tolist()
    return known


def grown(state: Any) -> Any:
    """Return a state after training: all of its numbers are others, those of the hyperparameters too."""

    def other(leaf: Any) -> Any:
        return leaf if is_key(leaf) or jnp.issubdtype(jnp.result_type(leaf), jnp.bool_) else leaf + 1

    return jax.tree.map(other, state)


def tried(name: str, home: Path) -> dict[str, Any]:
    """Return what the child of a trial loads."""
    make = STATES[name]
    study = phyla.Study(
        "orbax",
        {"lr": phyla.Float(0.001, 0.3)},
        phyla.Minimize("loss"),
        phyla.strategies.FixedSchedule([(0, {"lr": 0.125}), (1, {"lr": 0.0625})], total_steps=2),
        home=home,
    )
    trial = study.ask()
    assert trial is not None
    with OrbaxCheckpoint(trial) as checkpoint:
        checkpoint.save(saved := grown(make(trial.params["lr"])))
    known = read(trial.checkpoint_dir)
    study.tell(trial, metrics={"loss": 0.0})
    trial = study.ask()
    assert trial is not None
    fresh = make(trial.params["lr"])
    with OrbaxCheckpoint(trial) as checkpoint:
        try:
            loaded = checkpoint.load(fresh)
        except ConfigurationError as error:
            return {"refused": str(error)}
    assert jax.tree.structure(loaded) == jax.tree.structure(fresh)
    return {
        "rates": injected(loaded)["hyperparams"]
        == injected(fresh)["hyperparams"]
        != injected(saved)["hyperparams"],
        "others": injected(loaded)["others"] == injected(saved)["others"] != injected(fresh)["others"],
        "read": sorted(one for one, value in known.items() if not isinstance(value, str)),
    }


def policy_files(folder: Path) -> dict[str, Any]:
    """Return numbers that are read of a file that Stable-Baselines3 writes."""
    import gymnasium
    from stable_baselines3 import PPO

    model = PPO("MlpPolicy", gymnasium.make("CartPole-v1"), n_steps=8, batch_size=8, ent_coef=0.07, device="cpu")
    folder.mkdir()
    model.save(folder / "model")
    return {name: value if isinstance(value, float) else np.shape(value) for name, value in read(folder).items()}


if __name__ == "__main__":
    home = Path(sys.argv[1])
    states = {name: tried(name, home / str(at)) for at, name in enumerate(STATES)}
    print(json.dumps({"states": states, "sb3": policy_files(home / "p")}))
