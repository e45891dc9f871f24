"""A network in JAX on images of handwritten digits, with Optax and Orbax.

Run it with `phyla run examples/frameworks/digits_jax.py --workers 2`.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from sklearn.datasets import load_digits

import phyla
from phyla.integrations.jax import OrbaxCheckpoint

TOTAL = 200
Params = dict[str, jax.Array]
Data = dict[str, tuple[jax.Array, jax.Array]]


def setup(worker: phyla.WorkerContext) -> Data:
    digits = load_digits()
    images, labels = jnp.asarray(digits.data / 16), jnp.asarray(digits.target)
    return {"train": (images[:1300], labels[:1300]), "validation": (images[1300:], labels[1300:])}


@jax.jit  # type: ignore[untyped-decorator]
def fresh(key: jax.Array) -> Params:
    first, second = jax.random.split(key)
    return {"w1": 0.1 * jax.random.normal(first, (64, 32)), "w2": 0.1 * jax.random.normal(second, (32, 10))}


def loss_of(params: Params, images: jax.Array, labels: jax.Array) -> jax.Array:
    logits = jax.nn.relu(images @ params["w1"]) @ params["w2"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


optimizer = optax.inject_hyperparams(optax.adamw)(learning_rate=0.0, weight_decay=0.0)
measure = jax.jit(loss_of)


@partial(jax.jit, donate_argnums=0)
def update(state: dict[str, Any], key: jax.Array, images: jax.Array, labels: jax.Array) -> Any:
    batch = jax.random.randint(key, (32,), 0, len(labels))
    loss, gradients = jax.value_and_grad(loss_of)(state["params"], images[batch], labels[batch])
    updates, opt_state = optimizer.update(gradients, state["opt_state"], state["params"])
    return {"params": optax.apply_updates(state["params"], updates), "opt_state": opt_state}, loss


def train(trial: phyla.Trial) -> None:
    key = jax.random.key(trial.seed)
    params = fresh(key)
    made = optax.inject_hyperparams(optax.adamw)(
        learning_rate=trial.params["lr"], weight_decay=trial.params["weight_decay"]
    )
    with OrbaxCheckpoint(trial) as checkpoint:
        state = checkpoint.load({"params": params, "opt_state": made.init(params)})
        for step in trial.steps():
            state, loss = update(state, jax.random.fold_in(key, step), *trial.worker["train"])
            trial.report({"train/loss": loss}, step=step)
        if checkpoint.save(state):
            trial.report(loss=measure(state["params"], *trial.worker["validation"]))


study = phyla.Study(
    name="digits-jax",
    space=phyla.Space(lr=phyla.Float(1e-4, 1e-1, log=True), weight_decay=phyla.Float(1e-4, 1.0, log=True)),
    objective=phyla.Minimize("loss"),
    strategy=phyla.PBT(population_size=4, steps_per_trial=25, total_steps=TOTAL),
    train=train,
    setup=setup,
)

if __name__ == "__main__":
    print(study.run(workers=2).best)
