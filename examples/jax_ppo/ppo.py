"""CartPole and PPO as pure functions of JAX: one agent, to be vectorised over a population.

Nothing here knows of populations. All hyperparameters are numbers that are traced, so no value compiles anything
again. What does compile again is constant here: the sizes, and the number of epochs.
"""

from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import optax

ENVIRONMENTS, ROLLOUT, HIDDEN, EPOCHS, MINIBATCHES = 16, 64, 32, 4, 4
LONGEST = 500
"""Steps of an episode, at most; also the highest return."""

Tree: TypeAlias = Any
ADAM = optax.scale_by_adam()


class Agent(NamedTuple):
    """Everything that is saved of an agent; of a population each leaf has one more axis in front.

    Attributes:
        weights: of both networks, by name.
        adam: state of the optimizer.
        physics: position, speed, angle and angular speed, of shape (ENVIRONMENTS, 4).
        age: steps of the current episodes, of shape (ENVIRONMENTS,).
        key: of the random numbers.
    """

    weights: Tree
    adam: Tree
    physics: jax.Array
    age: jax.Array
    key: jax.Array


def fresh(seed: jax.Array) -> Agent:
    """Return an agent that has learned nothing."""
    key = jax.random.key_data(jax.random.key(seed))
    sizes = {"body": (4, HIDDEN), "actor": (HIDDEN, 2), "critic_body": (4, HIDDEN), "critic": (HIDDEN, 1)}
    keys = jax.random.split(jax.random.wrap_key_data(key), len(sizes) + 1)
    weights = {
        name: {"w": jax.random.normal(one, shape) / jnp.sqrt(shape[0]), "b": jnp.zeros(shape[1])}
        for one, (name, shape) in zip(keys, sizes.items(), strict=False)
    }
    weights["actor"]["w"] *= 0.01
    physics = jax.random.uniform(keys[-1], (ENVIRONMENTS, 4), minval=-0.05, maxval=0.05)
    return Agent(weights, ADAM.init(weights), physics, jnp.zeros(ENVIRONMENTS, jnp.int32), key)


def _forward(weights: Tree, seen: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the logarithms of the probabilities of both actions, and the value."""

    def layer(name: str, x: jax.Array) -> jax.Array:
        return x @ weights[name]["w"] + weights[name]["b"]

    logits = layer("actor", jnp.tanh(layer("body", seen)))
    return jax.nn.log_softmax(logits), layer("critic", jnp.tanh(layer("critic_body", seen)))[..., 0]


def _move(physics: jax.Array, action: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Push the cart to the left (0) or right (1); return where it is then, and whether the pole fell.

    Source: Barto, Sutton and Anderson 1983, with the constants of Gymnasium's CartPole-v1.
    """
    _, speed, angle, turn = jnp.moveaxis(physics, -1, 0)
    sin, cos = jnp.sin(angle), jnp.cos(angle)
    push = (jnp.where(action == 1, 10.0, -10.0) + 0.05 * turn**2 * sin) / 1.1
    turning = (9.8 * sin - cos * push) / (0.5 * (4 / 3 - 0.1 * cos**2 / 1.1))
    moved = jnp.stack([speed, push - 0.05 * turning * cos / 1.1, turn, turning], -1)
    after = physics + 0.02 * moved
    return after, (jnp.abs(after[..., 0]) > 2.4) | (jnp.abs(after[..., 2]) > 12 * jnp.pi / 180)


def update(agent: Agent, params: dict[str, jax.Array]) -> tuple[Agent, jax.Array]:
    """Play ROLLOUT steps in all environments and learn from them; return the mean length of what ended.

    Source: Schulman et al. 2017, arXiv 1707.06347.
    """
    key, start, shuffle = jax.random.split(jax.random.wrap_key_data(agent.key), 3)

    def play(state: Tree, key: jax.Array) -> tuple[Tree, Tree]:
        physics, age = state
        act, begin = jax.random.split(key)
        log_p, value = _forward(agent.weights, physics)
        action = jax.random.categorical(act, log_p)
        after, fell = _move(physics, action)
        ended = fell | (age + 1 >= LONGEST)
        # An episode that is cut off goes on in value.
        reward = 1.0 + jnp.where(ended & ~fell, params["gamma"] * _forward(agent.weights, after)[1], 0.0)
        new = jax.random.uniform(begin, physics.shape, minval=-0.05, maxval=0.05)
        chosen = jnp.take_along_axis(log_p, action[:, None], 1)[:, 0]
        step = (physics, action, chosen, value, reward, ended, jnp.where(ended, age + 1, 0))
        return (jnp.where(ended[:, None], new, after), jnp.where(ended, 0, age + 1)), step

    state, steps = jax.lax.scan(play, (agent.physics, agent.age), jax.random.split(start, ROLLOUT))
    seen, actions, old, values, rewards, ended, lengths = steps

    def back(carry: Tree, step: Tree) -> tuple[Tree, jax.Array]:
        advantage, following = carry
        reward, value, over = step
        go_on = params["gamma"] * (1.0 - over)
        advantage = reward + go_on * following - value + go_on * params["gae_lambda"] * advantage
        return (advantage, value), advantage

    last = _forward(agent.weights, state[0])[1]
    _, advantages = jax.lax.scan(back, (jnp.zeros_like(last), last), (rewards, values, ended), reverse=True)
    batch = (seen.reshape(-1, 4), actions.ravel(), old.ravel(), advantages.ravel(), (advantages + values).ravel())

    def loss(weights: Tree, part: Tree) -> jax.Array:
        seen, action, old, advantage, target = part
        log_p, value = _forward(weights, seen)
        ratio = jnp.exp(jnp.take_along_axis(log_p, action[:, None], 1)[:, 0] - old)
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        clipped = jnp.clip(ratio, 1 - params["clip"], 1 + params["clip"])
        policy = -jnp.minimum(ratio * advantage, clipped * advantage).mean()
        entropy = -(jnp.exp(log_p) * log_p).sum(-1).mean()
        return policy + 0.5 * ((value - target) ** 2).mean() - params["entropy"] * entropy

    def learn(state: Tree, rows: jax.Array) -> tuple[Tree, None]:
        weights, adam = state
        gradients = jax.grad(loss)(weights, jax.tree.map(lambda x: x[rows], batch))
        # The learning rate is applied last, so that it is a number like any other.
        moves, adam = ADAM.update(gradients, adam)
        return (jax.tree.map(lambda w, move: w - params["lr"] * move, weights, moves), adam), None

    orders = [jax.random.permutation(one, batch[1].size) for one in jax.random.split(shuffle, EPOCHS)]
    rows = jnp.stack(orders).reshape(EPOCHS * MINIBATCHES, -1)
    (weights, adam), _ = jax.lax.scan(learn, (agent.weights, agent.adam), rows)
    # Where no episode ended, those that run are as long as they are.
    mean = jnp.where(ended.any(), lengths.sum() / jnp.maximum(ended.sum(), 1), state[1].mean())
    physics, age = state
    return Agent(weights, adam, physics, age, jax.random.key_data(key)), mean
