"""Tasks whose true value is known, for `winner.py`. All members take a step at once, so a study takes 0.1 s.

They differ in kind: a noise floor, a ravine in which members diverge, a curve without any chance, one that rises
again as the model learns its few examples by heart, and a policy that can settle on the wrong action for good.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

import phyla

Array = npt.NDArray[np.float64]
State = dict[str, Array]
"""Weights by name; the first axis is the member."""
Params = dict[str, Array]
"""Hyperparameters by name, one of each member."""

FAR = 1e6
"""Where weights are put that left for infinity."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """A task that a population trains on.

    Attributes:
        name: in the table.
        space: the hyperparameters.
        maximize: the direction.
        unit: noise of level 1, a twentieth of what fresh weights lack, about.
        steps: training steps of a trial.
        fresh: weights of a population, from a generator of the study's seed.
        step: one training step.
        true: the exact value of each member.
    """

    name: str
    space: phyla.Space
    maximize: bool
    unit: float
    steps: int
    fresh: Callable[[np.random.Generator, int], State]
    step: Callable[[State, Params, np.random.Generator], State]
    true: Callable[[State], Array]


def _momentum(
    state: State, params: Params, gradient: Callable[[Array, np.random.Generator], Array], rng: Any
) -> State:
    velocity = params["momentum"][:, None] * state["v"] + gradient(state["w"], rng)
    weights = state["w"] - params["lr"][:, None] * velocity
    lost = ~(np.abs(weights).max(axis=1) <= FAR)
    weights[lost], velocity[lost] = FAR, 0.0
    return {"w": weights, "v": velocity}


def _at_rest(weights: Array, members: int) -> State:
    return {"w": np.tile(weights, (members, 1)), "v": np.zeros((members, len(weights)))}


CURVATURE = 1.0 / np.arange(1, 51)

QUADRATIC = Task(
    name="quadratic",
    space=phyla.Space(lr=phyla.Float(1e-3, 1.0, log=True), momentum=phyla.Float(0.0, 0.99)),
    maximize=False,
    unit=1.0,
    steps=50,
    fresh=lambda rng, members: _at_rest(rng.normal(size=50) * 3, members),
    step=lambda state, params, rng: _momentum(
        state, params, lambda w, rng: CURVATURE * w + np.sqrt(CURVATURE) * rng.normal(size=w.shape), rng
    ),
    true=lambda state: 0.5 * (CURVATURE * state["w"] ** 2).sum(axis=1),
)


def _ravine_slope(w: Array, rng: np.random.Generator) -> Array:
    across = w[:, 1] - w[:, 0] ** 2
    slope = np.stack([-2 * (1 - w[:, 0]) - 400 * w[:, 0] * across, 200 * across], axis=1)
    return slope + 3.0 * rng.normal(size=w.shape)


RAVINE = Task(
    name="ravine",
    space=phyla.Space(lr=phyla.Float(1e-5, 1e-2, log=True), momentum=phyla.Float(0.0, 0.99)),
    maximize=False,
    unit=1.0,
    steps=50,
    fresh=lambda rng, members: _at_rest(np.array([-1.2, 1.0]) + 0.1 * rng.normal(size=2), members),
    step=lambda state, params, rng: _momentum(state, params, _ravine_slope, rng),
    true=lambda state: (1 - state["w"][:, 0]) ** 2 + 100 * (state["w"][:, 1] - state["w"][:, 0] ** 2) ** 2,
)

TOY = Task(
    name="toy",
    space=phyla.Space(h0=phyla.Float(0.0, 1.0), h1=phyla.Float(0.0, 1.0)),
    maximize=True,
    unit=0.08,
    steps=5,
    fresh=lambda rng, members: {"w": np.full((members, 2), 0.9)},
    step=lambda state, params, rng: {
        "w": state["w"] * (1 - 0.02 * np.stack([params["h0"], params["h1"]], axis=1))
    },
    true=lambda state: 1.2 - (state["w"] ** 2).sum(axis=1),
)

FEATURES, EXAMPLES, HELD_OUT, BATCH = 30, 60, 2_000, 10
_TEACHER = np.random.default_rng(0).normal(size=FEATURES) * 0.4
_X = np.random.default_rng(1).normal(size=(HELD_OUT, FEATURES))
_CHANCE = 1 / (1 + np.exp(-_X @ _TEACHER))


def _few_examples(rng: np.random.Generator, members: int) -> State:
    x = rng.normal(size=(EXAMPLES, FEATURES))
    label = (rng.random(EXAMPLES) < 1 / (1 + np.exp(-x @ _TEACHER))).astype(float)
    return {
        "w": np.zeros((members, FEATURES)),
        "x": np.tile(x, (members, 1, 1)),
        "label": np.tile(label, (members, 1)),
    }


def _logistic_step(state: State, params: Params, rng: np.random.Generator) -> State:
    w, members = state["w"], np.arange(len(state["w"]))[:, None]
    batch = rng.integers(EXAMPLES, size=(len(w), BATCH))
    x, label = state["x"][members, batch], state["label"][members, batch]
    error = 0.5 * (1 + np.tanh(np.einsum("mbf,mf->mb", x, w) / 2)) - label
    slope = np.einsum("mb,mbf->mf", error, x) / BATCH + params["decay"][:, None] * w
    return {**state, "w": w - params["lr"][:, None] * slope}


def _held_out_loss(logits: Array) -> Array:
    loss: Array = (np.logaddexp(0.0, logits) - _CHANCE * logits).mean(axis=1)
    return loss


LOGISTIC = Task(
    name="logistic",
    space=phyla.Space(lr=phyla.Float(1e-3, 1.0, log=True), decay=phyla.Float(1e-4, 1.0, log=True)),
    maximize=False,
    unit=0.003,
    steps=50,
    fresh=_few_examples,
    step=_logistic_step,
    true=lambda state: _held_out_loss(state["w"] @ _X.T),
)

CONTEXTS, ACTIONS, PULLS = 20, 10, 20


def _policy(state: State) -> Array:
    chance = np.exp(state["w"] - state["w"].max(axis=2, keepdims=True))
    policy: Array = chance / chance.sum(axis=2, keepdims=True)
    return policy


def _bandit_step(state: State, params: Params, rng: np.random.Generator) -> State:
    policy, members = _policy(state), np.arange(len(state["w"]))[:, None]
    context = rng.integers(CONTEXTS, size=(len(members), PULLS))
    chance = policy[members, context]
    action = (chance.cumsum(axis=2) < rng.random(context.shape)[..., None]).sum(axis=2).clip(max=ACTIONS - 1)
    gain = state["reward"][members, context, action] + 0.5 * rng.normal(size=context.shape) - 0.5
    slope = np.zeros_like(policy)
    np.add.at(slope, (members, context), gain[..., None] * (np.eye(ACTIONS)[action] - chance) / PULLS)
    log = np.log(policy + 1e-12)
    entropy = -policy * (log - (policy * log).sum(axis=2, keepdims=True)) / CONTEXTS
    step = params["lr"][:, None, None] * (slope + params["entropy"][:, None, None] * entropy)
    return {**state, "w": state["w"] + step}


BANDIT = Task(
    name="bandit",
    space=phyla.Space(lr=phyla.Float(0.1, 30.0, log=True), entropy=phyla.Float(1e-4, 1e-1, log=True)),
    maximize=True,
    unit=0.02,
    steps=50,
    fresh=lambda rng, members: {
        "w": np.zeros((members, CONTEXTS, ACTIONS)),
        "reward": np.tile(rng.random((CONTEXTS, ACTIONS)), (members, 1, 1)),
    },
    step=_bandit_step,
    true=lambda state: (_policy(state) * state["reward"]).sum(axis=2).mean(axis=1),
)

TASKS = {task.name: task for task in (QUADRATIC, RAVINE, TOY, LOGISTIC, BANDIT)}
