"""A small network on scikit-learn's digits, with a fifth of the training labels wrong.

The images are split anew for each seed: 400 to train on, 400 for validation, 997 for the test. Wrong labels make
overfitting costly, so how fast to learn, and how much to regularise, hangs on how far training is.
"""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from comparing import Budget, Problem

import phyla

Array = npt.NDArray[np.float64]

NAME = "digits"
TITLE = "Digits: a small network, a fifth of the training labels wrong"
REPORT = "negative log-likelihood on the test images, nats"
MAXIMIZE = False
BUDGET = Budget(
    members=12,
    steps_per_trial=50,
    total_steps=1000,
    grid={"lr": [0.01, 0.03, 0.1, 0.3], "decay": [1e-4, 1e-3, 1e-2]},
)
QUICK = Budget(members=4, steps_per_trial=10, total_steps=40, grid={"lr": [0.03, 0.3], "decay": [1e-4, 1e-2]})
COST_S = 2.0
USES = ()

HIDDEN, WRONG = 24, 0.2
SPACE = phyla.Space(
    lr=phyla.Float(1e-3, 1.0, log=True),
    momentum=phyla.Float(0.0, 0.98),
    decay=phyla.Float(1e-6, 1e-1, log=True),
    noise=phyla.Float(0.0, 1.0),
    batch=phyla.Int(4, 128, log=True),
)


@cache
def images() -> tuple[Array, npt.NDArray[np.int64]]:
    """Return all images, scaled to mean 0, and their labels."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    return digits.data / 16.0 - 0.3, digits.target


def split(seed: int) -> dict[str, tuple[Array, npt.NDArray[np.int64]]]:
    """Return three parts; labels are wrong in the part for training."""
    x, y = images()
    rng = np.random.default_rng([seed, 7])
    order = rng.permutation(len(y))
    parts = {"train": order[:400], "validation": order[400:800], "test": order[800:]}
    found = {name: (x[part], y[part].copy()) for name, part in parts.items()}
    labels = found["train"][1]
    wrong = rng.random(len(labels)) < WRONG
    labels[wrong] = (labels[wrong] + rng.integers(1, 10, wrong.sum())) % 10
    return found


def fresh(rng: np.random.Generator) -> dict[str, Array]:
    """Return weights, and velocities that are 0."""
    weights = {
        "w1": rng.normal(0, 0.125, (64, HIDDEN)),
        "b1": np.zeros(HIDDEN),
        "w2": rng.normal(0, 0.2, (HIDDEN, 10)),
        "b2": np.zeros(10),
    }
    return {**weights, **{f"v_{name}": np.zeros_like(value) for name, value in weights.items()}}


def forward(weights: dict[str, Array], x: Array) -> tuple[Array, Array]:
    """Return what the hidden layer says, and log-probabilities."""
    hidden = np.tanh(x @ weights["w1"] + weights["b1"])
    logits = hidden @ weights["w2"] + weights["b2"]
    logits -= logits.max(axis=1, keepdims=True)
    return hidden, logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


def nll(weights: dict[str, Array], part: tuple[Array, npt.NDArray[np.int64]]) -> float:
    """Return the mean negative log-likelihood, in nats; infinite for weights that are no numbers."""
    x, y = part
    value = float(-forward(weights, x)[1][np.arange(len(y)), y].mean())
    return value if np.isfinite(value) else float("inf")


def step(weights: dict[str, Array], x: Array, y: npt.NDArray[np.int64], params: Any) -> None:
    """Take one step of gradient descent with momentum."""
    hidden, log_p = forward(weights, x)
    delta = np.exp(log_p)
    delta[np.arange(len(y)), y] -= 1.0
    delta /= len(y)
    back = (delta @ weights["w2"].T) * (1.0 - hidden**2)
    gradients = {"w1": x.T @ back, "b1": back.sum(0), "w2": hidden.T @ delta, "b2": delta.sum(0)}
    for name, gradient in gradients.items():
        velocity = weights[f"v_{name}"]
        velocity *= params["momentum"]
        velocity -= params["lr"] * (gradient + params["decay"] * weights[name])
        weights[name] += velocity


def problem(seed: int) -> Problem:
    """Make the problem."""
    parts = split(seed)

    def load(path: Path) -> dict[str, Array]:
        with np.load(path / "network.npz") as file:
            return {name: file[name] for name in file.files}

    def train(trial: phyla.Trial) -> None:
        rng = np.random.default_rng(trial.seed)
        weights = load(trial.source.path) if trial.source else fresh(rng)
        x, y = parts["train"]
        params: Any = trial.params.flat()
        with np.errstate(over="ignore", invalid="ignore"):
            for _ in trial.steps():
                batch = rng.integers(len(y), size=params["batch"])
                noisy = x[batch] + params["noise"] * rng.normal(size=(len(batch), 64))
                step(weights, noisy, y[batch], params)
            loss = nll(weights, parts["validation"])
        np.savez(trial.checkpoint_dir / "network.npz", **weights)  # type: ignore[arg-type]
        trial.report(nll=loss)

    def final(path: Path) -> dict[str, float]:
        weights = load(path)
        return {"report": nll(weights, parts["test"]), "tune": nll(weights, parts["validation"])}

    return Problem(space=SPACE, objective=phyla.Minimize("nll"), train=train, final=final)
