"""Meta-training by evolution strategies: one step is one update of the meta-parameters.

The meta-gradient is estimated from pairs of opposite perturbations that see the same problem with the same noise
(antithetic sampling; Salimans et al. 2017, arXiv 1703.03864), each over one unroll from the start. How long that
unroll is, is a hyperparameter: a short one is cheap and smooth but short-sighted. What training reports is
therefore noisy, and means something else for each member. That is why the fitness comes from a suite.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

import numpy as np

import phyla
from learned_optimizer.inner import TRAINING, Array, Problem
from learned_optimizer.optimizer import FLOOR, META_PARAMETERS, Learned, fresh, unroll

SPACE = phyla.Space(
    lr=phyla.Float(1e-3, 0.1, log=True),
    sigma=phyla.Float(0.01, 0.5, log=True),
    pairs=phyla.Int(2, 8, log=True),
    unroll=phyla.Int(10, 60, log=True),
)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class MetaState:
    """What a checkpoint holds.

    Attributes:
        meta: the meta-parameters.
        mean: first moment of the outer Adam.
        square: second moment of the outer Adam.
        updates: how many updates these moments have seen.
    """

    meta: Array
    mean: Array
    square: Array
    updates: int

    @classmethod
    def fresh(cls, rng: np.random.Generator) -> "MetaState":
        nothing = np.zeros(META_PARAMETERS)
        return cls(meta=fresh(rng), mean=nothing, square=nothing, updates=0)

    @classmethod
    def load(cls, folder: Path) -> "MetaState":
        with np.load(folder / "meta.npz") as file:
            return cls(meta=file["meta"], mean=file["mean"], square=file["square"], updates=int(file["updates"]))

    def save(self, folder: Path) -> None:
        np.savez(folder / "meta.npz", meta=self.meta, mean=self.mean, square=self.square, updates=self.updates)

    def updated(self, gradient: Array, lr: float) -> "MetaState":
        """Take one step of Adam."""
        mean = 0.9 * self.mean + 0.1 * gradient
        square = 0.99 * self.square + 0.01 * gradient**2
        updates = self.updates + 1
        step = (mean / (1.0 - 0.9**updates)) / (np.sqrt(square / (1.0 - 0.99**updates)) + 1e-8)
        return replace(self, meta=self.meta - lr * step, mean=mean, square=square, updates=updates)


def es_gradient(
    objective: Callable[[Array], Array], meta: Array, *, sigma: float, pairs: int, rng: np.random.Generator
) -> tuple[Array, float]:
    """Estimate the gradient of a smoothed objective from opposite perturbations.

    Args:
        objective: from rows [2 * pairs, meta-parameters] to their values [2 * pairs]. Row i and row pairs + i are
            opposite, so they should be measured on the same problem.
        meta: where the gradient is wanted.
        sigma: standard deviation of the perturbations.
        pairs: how many.
        rng: where they come from.

    Returns:
        The estimate, and the mean of all values.
    """
    noise = rng.normal(size=(pairs, len(meta)))
    values = objective(np.concatenate([meta + sigma * noise, meta - sigma * noise]))
    slopes = (values[:pairs] - values[pairs:]) / (2.0 * sigma)
    return slopes @ noise / pairs, float(values.mean())


def meta_losses(metas: Array, problem: Problem, seeds: list[int], steps: int) -> Array:
    """Return how bad each row of meta-parameters is on the problem of its seed.

    It is the logarithm of loss over first loss, half of it at the end and half the mean over the unroll.
    """
    curves = unroll(Learned(meta=metas), problem, seeds, steps)
    logs = np.log(curves / curves[:, :1] + FLOOR)
    return np.asarray(0.5 * logs[:, 1:].mean(axis=1) + 0.5 * logs[:, -1])


def meta_step(
    state: MetaState, rng: np.random.Generator, *, lr: float, sigma: float, pairs: int, steps: int
) -> tuple[MetaState, float]:
    """Update the meta-parameters on one family of problems, one instance per pair; return the mean meta-loss."""
    problem = TRAINING[rng.integers(len(TRAINING))]
    seeds = [int(seed) for seed in rng.integers(2**31, size=pairs)]
    gradient, loss = es_gradient(
        lambda metas: meta_losses(metas, problem, [*seeds, *seeds], steps),
        state.meta,
        sigma=sigma,
        pairs=pairs,
        rng=rng,
    )
    return state.updated(gradient, lr), loss


def train(trial: phyla.Trial) -> None:
    """Meta-train one trial: continue from the parent's checkpoint with the given hyperparameters."""
    rng = np.random.default_rng(trial.seed)
    state = MetaState.load(trial.source.path) if trial.source else MetaState.fresh(rng)
    params = trial.params
    losses: list[float] = []
    for _ in trial.steps():
        state, loss = meta_step(
            state, rng, lr=params["lr"], sigma=params["sigma"], pairs=params["pairs"], steps=params["unroll"]
        )
        losses.append(loss)
    state.save(trial.checkpoint_dir)
    trial.report(meta_loss=np.mean(losses))
