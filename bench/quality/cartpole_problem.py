"""Gymnasium's CartPole-v1, learned by an actor and a critic on the policy gradient.

A step is one update, from 16 environments that each take 20 actions. Learning rate, discount, the trace decay
of generalised advantages and the bonus for entropy decide whether that is fast, slow or falls back. Fitness is
the mean return of 8 episodes and so is noisy; what is reported is the mean over 100 fresh ones.
"""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from comparing import Budget, Problem

import phyla

Array = npt.NDArray[np.float64]
Weights = dict[str, Array]

NAME = "cartpole"
TITLE = "CartPole-v1: an actor and a critic"
REPORT = "mean return of the best checkpoint over 100 fresh episodes, at most 500"
MAXIMIZE = True
BUDGET = Budget(
    members=8,
    steps_per_trial=20,
    total_steps=200,
    grid={"lr": [0.001, 0.003, 0.01, 0.03], "entropy": [1e-3, 3e-2]},
)
QUICK = Budget(members=4, steps_per_trial=2, total_steps=6, grid={"lr": [0.003, 0.03], "entropy": [1e-3, 3e-2]})
COST_S = 4.0
USES = ()

ENVS, ACTIONS, HIDDEN, EPISODES, FRESH = 16, 20, 32, 8, 100
SPACE = phyla.Space(
    lr=phyla.Float(1e-5, 1e-1, log=True),
    horizon=phyla.Float(3.0, 1000.0, log=True),
    trace=phyla.Float(0.0, 1.0),
    entropy=phyla.Float(1e-4, 1e-1, log=True),
)


def fresh(rng: np.random.Generator) -> Weights:
    """Return weights of a network with two heads, and the two moments of Adam."""
    weights: Weights = {
        "w1": rng.normal(0, 0.5, (4, HIDDEN)),
        "b1": np.zeros(HIDDEN),
        "w2": rng.normal(0, 0.05, (HIDDEN, 3)),
        "b2": np.zeros(3),
    }
    moments = {f"{which}_{name}": np.zeros_like(value) for name, value in weights.items() for which in "mv"}
    return {**weights, **moments, "updates": np.zeros(())}


def forward(weights: Weights, x: Array) -> tuple[Array, Array, Array]:
    """Return the hidden layer, the log-probabilities of both actions, and the value."""
    hidden = np.tanh(x @ weights["w1"] + weights["b1"])
    out = hidden @ weights["w2"] + weights["b2"]
    log_p = out[..., :2] - np.logaddexp(out[..., 0], out[..., 1])[..., None]
    return hidden, log_p, out[..., 2]


def scaled(observation: npt.NDArray[np.float32]) -> Array:
    """Scale position, speed, angle and angular speed to about 1."""
    x: Array = observation * np.array([0.5, 0.5, 5.0, 0.5])
    return x


def update(
    weights: Weights, x: Array, actions: npt.NDArray[np.int64], gains: Array, returns: Array, p: Any
) -> None:
    """Take one step of Adam on policy, value and entropy; the batch is flat."""
    hidden, log_p, value = forward(weights, x)
    probability = np.exp(log_p)
    chosen = np.eye(2)[actions]
    entropy = -(probability * log_p).sum(axis=1, keepdims=True)
    delta = np.empty((len(x), 3))
    delta[:, :2] = gains[:, None] * (probability - chosen) + p["entropy"] * probability * (log_p + entropy)
    delta[:, 2] = 0.5 * (value - returns)
    delta /= len(x)
    back = (delta @ weights["w2"].T) * (1.0 - hidden**2)
    gradients = {"w1": x.T @ back, "b1": back.sum(0), "w2": hidden.T @ delta, "b2": delta.sum(0)}
    norm = np.sqrt(sum(float((g**2).sum()) for g in gradients.values()))
    weights["updates"] += 1
    count = float(weights["updates"])
    for name, gradient in gradients.items():
        gradient = gradient * min(1.0, 1.0 / (norm + 1e-8))
        first, second = weights[f"m_{name}"], weights[f"v_{name}"]
        first += 0.1 * (gradient - first)
        second += 0.01 * (gradient**2 - second)
        change = (first / (1 - 0.9**count)) / (np.sqrt(second / (1 - 0.99**count)) + 1e-8)
        weights[name] -= p["lr"] * change


def mean_return(weights: Weights, envs: Any, episodes: int, seed: int, rng: np.random.Generator) -> float:
    """Play so many episodes at once, to their ends, and return their mean return."""
    observation, _ = envs.reset(seed=seed)
    alive, total = np.ones(episodes, dtype=bool), np.zeros(episodes)
    while alive.any():
        _, log_p, _ = forward(weights, scaled(observation))
        actions = (rng.random(episodes) < np.exp(log_p[:, 1])).astype(np.int64)
        observation, reward, terminated, truncated, _ = envs.step(actions)
        total += reward * alive
        alive &= ~(terminated | truncated)
    return float(total.mean())


def make(number: int) -> Any:
    """Make environments that are stepped together."""
    return gymnasium.make_vec("CartPole-v1", num_envs=number, vectorization_mode="vector_entry_point")


def advantages(rewards: Array, values: Array, ended: Array, discount: float, trace: float) -> Array:
    """Return generalised advantages, of shape (actions, environments); values have one row more.

    `ended` is 1 where the episode failed at that action.
    """
    gains = np.zeros_like(rewards)
    after = np.zeros(rewards.shape[1])
    for at in reversed(range(len(rewards))):
        going = 1.0 - ended[at]
        error = rewards[at] + discount * values[at + 1] * going - values[at]
        after = error + discount * trace * going * after
        gains[at] = after
    return gains


def learn(weights: Weights, trial: phyla.Trial, envs: Any) -> None:
    """Update once a step, from environments that start anew with the trial."""
    rng = np.random.default_rng(trial.seed)
    params: Any = trial.params.flat()
    discount = 1.0 - 1.0 / params["horizon"]
    observation, _ = envs.reset(seed=trial.seed)
    anew = np.zeros(ENVS, dtype=bool)
    for _ in trial.steps():
        x = np.empty((ACTIONS + 1, ENVS, 4))
        actions = np.empty((ACTIONS, ENVS), dtype=np.int64)
        rewards, ended, used = np.zeros((ACTIONS, ENVS)), np.zeros((ACTIONS, ENVS)), np.ones((ACTIONS, ENVS), bool)
        for at in range(ACTIONS):
            x[at] = scaled(observation)
            _, log_p, _ = forward(weights, x[at])
            actions[at] = rng.random(ENVS) < np.exp(log_p[:, 1])
            observation, rewards[at], terminated, truncated, _ = envs.step(actions[at])
            # What comes after an end is the first observation of another episode, and no consequence of an action.
            used[at] = ~anew
            anew = terminated | truncated
            ended[at] = terminated | ~used[at]
        x[ACTIONS] = scaled(observation)
        values = forward(weights, x)[2]
        gains = advantages(rewards * 0.1, values, ended, discount, params["trace"])
        returns = gains + values[:ACTIONS]
        kept = gains[used]
        update(
            weights,
            x[:ACTIONS][used],
            actions[used],
            (kept - kept.mean()) / (kept.std() + 1e-6),
            returns[used],
            params,
        )


def problem(seed: int) -> Problem:
    """Make the problem."""
    training, testing = make(ENVS), make(EPISODES)

    def load(path: Path) -> Weights:
        with np.load(path / "network.npz") as file:
            return {name: file[name] for name in file.files}

    def train(trial: phyla.Trial) -> None:
        weights = load(trial.source.path) if trial.source else fresh(np.random.default_rng(trial.seed))
        learn(weights, trial, training)
        np.savez(trial.checkpoint_dir / "network.npz", **weights)  # type: ignore[arg-type]
        rng = np.random.default_rng([trial.seed, 1])
        trial.report(episode_return=mean_return(weights, testing, EPISODES, int(rng.integers(2**31)), rng))

    def final(path: Path) -> dict[str, float]:
        weights, envs = load(path), make(FRESH)
        values = [
            mean_return(weights, envs, FRESH, 2**31 + 2 * seed + which, np.random.default_rng([seed, which]))
            for which in range(2)
        ]
        return {"report": values[0], "tune": values[1]}

    return Problem(space=SPACE, objective=phyla.Maximize("episode_return"), train=train, final=final)
