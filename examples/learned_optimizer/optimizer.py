"""A small learned optimizer, the hand-designed ones it is measured against, and unrolls of either."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, Protocol, final

import numpy as np

from learned_optimizer.inner import Array, Problem

HIDDEN = 6
MOMENTA = (0.5, 0.9, 0.99)
SECOND_MOMENTS = (0.9, 0.99)
FEATURES = len(MOMENTA) + len(SECOND_MOMENTS) + 5
META_PARAMETERS = FEATURES * HIDDEN + HIDDEN + 2 * HIDDEN + 2
"""80 of them."""

STEP_SIZE = 0.1
FLOOR = 1e-3
"""Share of the first loss that is added before logarithms are taken, so that exact zeros do not decide."""
CEILING = 10.0
"""Multiple of the first loss that stands for anything worse, and for what is no number."""

TUNING_SEEDS = range(10_000_000, 10_000_008)
"""On these the learning rates of the baselines are tuned; no evaluation uses them."""


class Optimizer(Protocol):
    """Moves points [seeds, parameters] step by step."""

    def init(self, theta: Array) -> Any:
        """Return the state to begin with."""
        ...

    def update(self, state: Any, theta: Array, gradient: Array, step: int) -> tuple[Any, Array]:
        """Return the next state and the next points."""
        ...


@final
@dataclass(frozen=True, kw_only=True)
class SGD:
    """Gradient descent with momentum.

    Args:
        lr: learning rate.
        momentum: decay of the velocity.
    """

    lr: float
    momentum: float = 0.9

    def init(self, theta: Array) -> Array:
        return np.zeros_like(theta)

    def update(self, state: Array, theta: Array, gradient: Array, step: int) -> tuple[Array, Array]:
        velocity = self.momentum * state + gradient
        return velocity, theta - self.lr * velocity


@final
@dataclass(frozen=True, kw_only=True)
class Adam:
    """Adam (Kingma and Ba 2015, algorithm 1).

    Args:
        lr: learning rate.
    """

    lr: float

    def init(self, theta: Array) -> tuple[Array, Array]:
        return np.zeros_like(theta), np.zeros_like(theta)

    def update(
        self, state: tuple[Array, Array], theta: Array, gradient: Array, step: int
    ) -> tuple[tuple[Array, Array], Array]:
        first = 0.9 * state[0] + 0.1 * gradient
        second = 0.999 * state[1] + 0.001 * gradient**2
        mean = first / (1.0 - 0.9 ** (step + 1))
        scale = np.sqrt(second / (1.0 - 0.999 ** (step + 1)))
        return (first, second), theta - self.lr * mean / (scale + 1e-8)


@final
@dataclass(frozen=True, kw_only=True)
class Learned:
    """A tiny network maps features of each parameter to its update, the same network for all parameters.

    The update is `-0.1 * direction * exp(magnitude)`, as in Metz et al. 2020 (arXiv 2009.11243, section 3), with
    features that do not change with the scale of the loss except for one.

    Args:
        meta: the meta-parameters, [meta-parameters] or one set per seed, [seeds, meta-parameters].
    """

    meta: Array

    def init(self, theta: Array) -> tuple[Array, Array]:
        return np.zeros((len(MOMENTA), *theta.shape)), np.zeros((len(SECOND_MOMENTS), *theta.shape))

    def update(
        self, state: tuple[Array, Array], theta: Array, gradient: Array, step: int
    ) -> tuple[tuple[Array, Array], Array]:
        decays = np.array(MOMENTA)[:, None, None]
        decays2 = np.array(SECOND_MOMENTS)[:, None, None]
        momenta = decays * state[0] + (1.0 - decays) * gradient
        second = decays2 * state[1] + (1.0 - decays2) * gradient**2
        scales = np.sqrt(second / (1.0 - decays2 ** (step + 1))) + 1e-8
        features = _features(momenta / (1.0 - decays ** (step + 1)), scales, gradient, step)
        w1, b1, w2, b2 = _unpacked(np.atleast_2d(self.meta))
        out = np.tanh(features @ w1 + b1) @ w2 + b2
        moved = theta - STEP_SIZE * out[..., 0] * np.exp(np.clip(out[..., 1], -6.0, 2.0))
        return (momenta, second), moved


def _features(momenta: Array, scales: Array, gradient: Array, step: int) -> Array:
    """Return [seeds, parameters, features], each of about unit size."""
    size = np.sqrt((gradient**2).mean(axis=1, keepdims=True)) + 1e-8
    parts = [
        *(momenta / scales[-1]),
        *(gradient / scales),
        gradient / size,
        np.log(scales[-1]) / 5.0,
        np.log(scales[0] / scales[-1]),
        np.full_like(gradient, np.exp(-step / 10.0)),
        np.full_like(gradient, np.exp(-step / 100.0)),
    ]
    return np.asarray(np.clip(np.stack(parts, axis=-1), -5.0, 5.0))


def _unpacked(meta: Array) -> tuple[Array, Array, Array, Array]:
    w1, b1, w2, b2 = np.split(meta, np.cumsum([FEATURES * HIDDEN, HIDDEN, 2 * HIDDEN]), axis=1)
    return w1.reshape(-1, FEATURES, HIDDEN), b1[:, None], w2.reshape(-1, HIDDEN, 2), b2[:, None]


def fresh(rng: np.random.Generator) -> Array:
    """Return random meta-parameters, of an optimizer that takes small steps anywhere."""
    scale = [FEATURES**-0.5, 0.0, 0.1, 0.0]
    spread = np.repeat(scale, [FEATURES * HIDDEN, HIDDEN, 2 * HIDDEN, 2])
    return np.asarray(spread * rng.normal(size=META_PARAMETERS))


def unroll(optimizer: Optimizer, problem: Problem, seeds: Sequence[int], steps: int | None = None) -> Array:
    """Run an optimizer on one instance per seed.

    Args:
        optimizer: what moves the points.
        problem: the family.
        seeds: of the instances; one may occur several times.
        steps: how long; by default as long as the problem says.

    Returns:
        The exact losses before each step and at the end, [seeds, steps + 1]; at most `CEILING` times the first.
    """
    steps = problem.steps if steps is None else steps
    drawn = problem.draw(seeds, steps)
    theta, state = drawn.start, optimizer.init(drawn.start)
    losses = np.empty((len(seeds), steps + 1))
    with np.errstate(all="ignore"):
        # Bad optimizers diverge; their losses end at the ceiling.
        losses[:, 0] = drawn.loss(theta)
        for step in range(steps):
            state, theta = optimizer.update(state, theta, drawn.gradient(theta, step), step)
            losses[:, step + 1] = drawn.loss(theta)
        ceiling = CEILING * losses[:, :1]
        return np.where(losses < ceiling, losses, ceiling)


def final_losses(curves: Array) -> Array:
    """Return the mean loss over the last tenth of each curve; [seeds]."""
    return np.asarray(curves[:, -max(1, curves.shape[1] // 10) :].mean(axis=1))


def log_ratio(curves: Array, reference: Array) -> Array:
    """Return the logarithm of each final loss over that of a reference on the same seed; [seeds]."""
    floor = FLOOR * curves[:, 0]
    return np.asarray(np.log((final_losses(curves) + floor) / (final_losses(reference) + floor)))


@lru_cache(maxsize=256)
def tuned(kind: Literal["adam", "sgd"], problem: Problem) -> Adam | SGD:
    """Return a baseline with the learning rate that is best for this very family, of 12 on a logarithmic grid."""

    def score(optimizer: Adam | SGD) -> float:
        curves = unroll(optimizer, problem, TUNING_SEEDS)
        return float(log_ratio(curves, curves[:, :1]).mean())

    make = Adam if kind == "adam" else SGD
    return min((make(lr=float(lr)) for lr in np.logspace(-2.75, 0.0, 12)), key=score)


@lru_cache(maxsize=1024)
def baseline(kind: Literal["adam", "sgd"], problem: Problem, seeds: tuple[int, ...]) -> Array:
    """Return the losses of a tuned baseline, [seeds, steps + 1]; computed once per process."""
    curves = unroll(tuned(kind, problem), problem, seeds)
    curves.setflags(write=False)
    return curves
