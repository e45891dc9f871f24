"""Inner problems: what an optimizer, learned or designed by hand, is run on.

Every problem is drawn from its seed alone, its gradient noise and batches included. So two optimizers that are
run on the same seed see the same problem, and it makes no difference how seeds are split over shards.

The classes are known to gin by `gin.register`: its bindings apply where gin makes the problem, as in
`setting.problem = @large/Quadratic()`, and never to a call in Python. With `gin.configurable` the bindings of an
evaluation would also change the problems that the same process trains on next.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, final

import gin
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Draws = tuple[npt.NDArray[Any], ...]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """Instances of a problem, one per seed.

    Attributes:
        start: where optimizers begin; [seeds, parameters].
        loss: the exact loss of points [seeds, parameters]; [seeds].
        gradient: the noisy gradient at points, at a step; [seeds, parameters].
    """

    start: Array
    loss: Callable[[Array], Array]
    gradient: Callable[[Array, int], Array]


class Problem(Protocol):
    """A family of problems."""

    def __hash__(self) -> int: ...

    @property
    def steps(self) -> int:
        """How long it is unrolled."""
        ...

    def draw(self, seeds: Sequence[int], steps: int) -> Drawn:
        """Draw one instance per seed, with the noise of so many steps. More steps begin with the same noise."""
        ...


@gin.register
@final
@dataclass(frozen=True, kw_only=True)
class Quadratic:
    """0.5 (x - c)' H (x - c), with a random rotation, scale and condition number.

    Args:
        dimension: number of parameters.
        condition: largest ratio of eigenvalues; each instance draws its own, log-uniformly from 1 on.
        noise: standard deviation of gradient noise, as a share of the largest eigenvalue.
        steps: length of the unroll.
    """

    dimension: int = 20
    condition: float = 100.0
    noise: float = 0.1
    steps: int = 60

    def draw(self, seeds: Sequence[int], steps: int) -> Drawn:
        def one(rng: np.random.Generator) -> Draws:
            rotation = np.linalg.qr(rng.normal(size=(self.dimension, self.dimension)))[0]
            scale = np.exp(rng.uniform(np.log(0.1), np.log(10.0)))
            lowest = -np.log(self.condition) * rng.uniform()
            eigenvalues = scale * np.exp(np.linspace(lowest, 0.0, self.dimension))
            center = rng.normal(size=self.dimension)
            noise = self.noise * scale * rng.normal(size=(steps, self.dimension))
            return (rotation * eigenvalues) @ rotation.T, center, noise

        hessian, center, noise = _stacked(seeds, one)

        def slope(x: Array) -> Array:
            return np.asarray(np.einsum("sij,sj->si", hessian, x - center))

        return Drawn(
            start=np.zeros_like(center),
            loss=lambda x: 0.5 * np.einsum("si,si->s", x - center, slope(x)),
            gradient=lambda x, step: slope(x) + noise[:, step],
        )


@gin.register
@final
@dataclass(frozen=True, kw_only=True)
class Valley:
    """Rosenbrock's valley: the sum over i of (1 - x_i)^2 + steepness (x_{i+1} - x_i^2)^2.

    Args:
        dimension: number of parameters.
        steepness: 100 in the original.
        noise: standard deviation of gradient noise.
        steps: length of the unroll.
    """

    dimension: int = 10
    steepness: float = 10.0
    noise: float = 0.1
    steps: int = 60

    def draw(self, seeds: Sequence[int], steps: int) -> Drawn:
        def one(rng: np.random.Generator) -> Draws:
            start = rng.uniform(-1.0, 0.5, size=self.dimension)
            return start, self.noise * rng.normal(size=(steps, self.dimension))

        start, noise = _stacked(seeds, one)

        def loss(x: Array) -> Array:
            off = x[:, 1:] - x[:, :-1] ** 2
            return np.asarray(((1.0 - x[:, :-1]) ** 2 + self.steepness * off**2).sum(axis=1))

        def gradient(x: Array, step: int) -> Array:
            off = x[:, 1:] - x[:, :-1] ** 2
            slope = noise[:, step].copy()
            slope[:, 1:] += 2.0 * self.steepness * off
            slope[:, :-1] -= 4.0 * self.steepness * off * x[:, :-1] + 2.0 * (1.0 - x[:, :-1])
            return slope

        return Drawn(start=start, loss=loss, gradient=gradient)


@gin.register
@final
@dataclass(frozen=True, kw_only=True)
class Logistic:
    """Logistic regression, two classes, with a small ridge; labels come from a random hyperplane, some flipped.

    Args:
        inputs: number of inputs, of unequal scales.
        examples: size of the data set.
        batch: examples per gradient; 0 for all.
        flipped: share of labels that are wrong.
        steps: length of the unroll.
    """

    inputs: int = 20
    examples: int = 128
    batch: int = 16
    flipped: float = 0.1
    steps: int = 60

    def draw(self, seeds: Sequence[int], steps: int) -> Drawn:
        def one(rng: np.random.Generator) -> Draws:
            scales = np.exp(rng.uniform(np.log(0.2), np.log(2.0), size=self.inputs))
            x = scales * rng.normal(size=(self.examples, self.inputs))
            y = np.sign(x @ rng.normal(size=self.inputs))
            y *= np.where(rng.uniform(size=self.examples) < self.flipped, -1.0, 1.0)
            return x, y, _batches(rng, steps, self.batch, self.examples)

        x, y, batches = _stacked(seeds, one)
        ridge = 1e-3

        def loss(theta: Array) -> Array:
            margins = y * np.einsum("sni,si->sn", x, theta)
            return np.asarray(np.logaddexp(0.0, -margins).mean(axis=1) + 0.5 * ridge * (theta**2).sum(axis=1))

        def gradient(theta: Array, step: int) -> Array:
            some_x, some_y = _some(batches, step, x, y)
            margins = some_y * np.einsum("sni,si->sn", some_x, theta)
            pull = -some_y * 0.5 * (1.0 - np.tanh(0.5 * margins)) / some_y.shape[1]
            return np.asarray(np.einsum("sni,sn->si", some_x, pull) + ridge * theta)

        return Drawn(start=np.zeros((len(seeds), self.inputs)), loss=loss, gradient=gradient)


@gin.register
@final
@dataclass(frozen=True, kw_only=True)
class Network:
    """A network with one hidden layer of tanh units, on data of a random teacher.

    Args:
        kind: "regression" (squared error, noisy targets) or "classification" (cross-entropy).
        inputs: number of inputs.
        hidden: number of hidden units.
        outputs: number of outputs, or of classes.
        examples: size of the data set.
        batch: examples per gradient; 0 for all.
        noise: standard deviation of what is added to the teacher's outputs.
        steps: length of the unroll.
    """

    kind: Literal["regression", "classification"] = "regression"
    inputs: int = 5
    hidden: int = 8
    outputs: int = 3
    examples: int = 64
    batch: int = 16
    noise: float = 0.1
    steps: int = 60

    def draw(self, seeds: Sequence[int], steps: int) -> Drawn:
        sizes = (self.inputs * self.hidden, self.hidden, self.hidden * self.outputs, self.outputs)

        def one(rng: np.random.Generator) -> Draws:
            x = rng.normal(size=(self.examples, self.inputs))
            inner = rng.normal(size=(self.inputs, self.hidden)) * 2.0 / np.sqrt(self.inputs)
            outer = rng.normal(size=(self.hidden, self.outputs))
            y = np.tanh(x @ inner) @ outer
            y += self.noise * rng.normal(size=y.shape)
            if self.kind == "classification":
                y = np.eye(self.outputs)[y.argmax(axis=1)]
            start = rng.normal(size=sum(sizes))
            start *= np.repeat([self.inputs**-0.5, 0.0, self.hidden**-0.5, 0.0], sizes)
            return x, y, start, _batches(rng, steps, self.batch, self.examples)

        x, y, start, batches = _stacked(seeds, one)
        ends = np.cumsum(sizes)[:-1]

        def forward(theta: Array, x: Array) -> tuple[Array, Array, Array]:
            w1, b1, w2, b2 = np.split(theta, ends, axis=1)
            weights = w2.reshape(-1, self.hidden, self.outputs)
            hidden = np.tanh(x @ w1.reshape(-1, self.inputs, self.hidden) + b1[:, None])
            return hidden, weights, hidden @ weights + b2[:, None]

        def loss(theta: Array) -> Array:
            out = forward(theta, x)[2]
            if self.kind == "regression":
                return np.asarray(0.5 * ((out - y) ** 2).sum(axis=2).mean(axis=1))
            return np.asarray(-(y * _log_softmax(out)).sum(axis=2).mean(axis=1))

        def gradient(theta: Array, step: int) -> Array:
            some_x, some_y = _some(batches, step, x, y)
            hidden, weights, out = forward(theta, some_x)
            given = out if self.kind == "regression" else np.exp(_log_softmax(out))
            delta = (given - some_y) / some_y.shape[1]
            back = (delta @ weights.transpose(0, 2, 1)) * (1.0 - hidden**2)
            parts = (
                some_x.transpose(0, 2, 1) @ back,
                back.sum(axis=1),
                hidden.transpose(0, 2, 1) @ delta,
                delta.sum(axis=1),
            )
            return np.concatenate([part.reshape(len(theta), -1) for part in parts], axis=1)

        return Drawn(start=start, loss=loss, gradient=gradient)


def _stacked(seeds: Sequence[int], draw: Callable[[np.random.Generator], Draws]) -> list[Array]:
    """Draw once per different seed, and stack what was drawn in the order of the seeds."""
    drawn = {seed: draw(np.random.default_rng(seed)) for seed in dict.fromkeys(seeds)}
    return [np.stack(column) for column in zip(*(drawn[seed] for seed in seeds), strict=True)]


def _batches(rng: np.random.Generator, steps: int, batch: int, examples: int) -> npt.NDArray[np.int64]:
    if batch:
        return rng.integers(examples, size=(steps, batch))
    return np.broadcast_to(np.arange(examples), (steps, examples))


def _some(batches: npt.NDArray[Any], step: int, *data: Array) -> list[Array]:
    rows = batches[:, step].astype(np.int64)
    return [each[np.arange(len(each))[:, None], rows] for each in data]


def _log_softmax(out: Array) -> Array:
    shifted = out - out.max(axis=2, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=2, keepdims=True)))


TRAINING: tuple[Problem, ...] = (
    Quadratic(),
    Logistic(),
    Network(kind="regression"),
    Network(kind="classification"),
)
"""The families that meta-training draws from."""
