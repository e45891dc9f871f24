"""Two small networks that are trained against each other, in NumPy."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Weights = dict[str, Array]


def fresh(sizes: Sequence[int], rng: np.random.Generator) -> Weights:
    """Return the weights of a network with hidden layers of leaky rectifiers, and the two moments of Adam."""
    weights: Weights = {"updates": np.zeros(())}
    for layer, (fan_in, fan_out) in enumerate(pairwise(sizes)):
        for name, value in (
            (f"w{layer}", rng.normal(0, np.sqrt(2 / fan_in), (fan_in, fan_out))),
            (f"b{layer}", np.zeros(fan_out)),
        ):
            weights |= {name: value, f"first_{name}": np.zeros_like(value), f"second_{name}": np.zeros_like(value)}
    return weights


def depth(weights: Weights) -> int:
    """Return the number of layers."""
    return sum(name.startswith("w") for name in weights)


def forward(weights: Weights, x: Array) -> list[Array]:
    """Return what goes into each layer, and at last what comes out."""
    passed = [x]
    for layer in range(depth(weights)):
        x = passed[-1] @ weights[f"w{layer}"] + weights[f"b{layer}"]
        passed.append(np.where(x > 0, x, 0.2 * x) if layer + 1 < depth(weights) else x)
    return passed


def backward(weights: Weights, passed: Sequence[Array], slope: Array) -> tuple[Weights, Array]:
    """Return gradients by weight, and by input, from those by output."""
    gradients: Weights = {}
    for layer in reversed(range(depth(weights))):
        if layer + 1 < depth(weights):
            slope = slope * np.where(passed[layer + 1] > 0, 1.0, 0.2)
        gradients |= {f"w{layer}": passed[layer].T @ slope, f"b{layer}": slope.sum(axis=0)}
        slope = slope @ weights[f"w{layer}"].T
    return gradients, slope


def adam(weights: Weights, gradients: Weights, lr: float) -> None:
    """Take one step of Adam with moments of 0.5 and 0.99, as is usual here."""
    weights["updates"] += 1
    count = float(weights["updates"])
    for name, gradient in gradients.items():
        first, second = weights[f"first_{name}"], weights[f"second_{name}"]
        first += 0.5 * (gradient - first)
        second += 0.01 * (gradient**2 - second)
        weights[name] -= lr * (first / (1 - 0.5**count)) / (np.sqrt(second / (1 - 0.99**count)) + 1e-8)


def save(path: Path, networks: dict[str, Weights]) -> None:
    """Write both networks into one file."""
    arrays = {f"{which}/{name}": value for which, weights in networks.items() for name, value in weights.items()}
    np.savez(path, **arrays)  # type: ignore[arg-type]  # NumPy's stub mistakes the names for options


def load(path: Path) -> dict[str, Weights]:
    """Read what `save` wrote."""
    networks: dict[str, Weights] = {}
    with np.load(path) as file:
        for name in file.files:
            which, _, rest = name.partition("/")
            networks.setdefault(which, {})[rest] = file[name]
    return networks
