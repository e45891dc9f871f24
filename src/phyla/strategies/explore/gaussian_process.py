"""A Gaussian process that forgets: what PB2 expects of hyperparameters, and how sure it is."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, final

import numpy as np

Matrix: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]

BOUNDS = (
    (math.log(1e-2), math.log(1e2)),
    (math.log(1e-2), math.log(1e1)),
    (0.0, 0.5),
    (math.log(1e-3), math.log(2.0)),
)
"""Bounds of log length, log scale, epsilon and log noise, for inputs in [0, 1] and standardised targets."""

FITTED = 200
"""Rows that the four numbers are fitted on at most; a fit costs the cube of it, some thirty times."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """Covariance `scale * exp(-|x - x'|^2 / length) * (1 - epsilon)^(|t - t'| / 2)`, and `noise` on top.

    Points are rows `(t, x...)`, all in [0, 1]: arrays of shape (n, 1 + d); targets have shape (n,). Source:
    Parker-Holder et al. 2020, arXiv 2002.02518, section 4, after Bogunovic et al. 2016 (time-varying GP-UCB).
    """

    length: float = 0.5
    scale: float = 1.0
    epsilon: float = 0.1
    noise: float = 0.1

    def covariance(self, first: Matrix, second: Matrix) -> Matrix:
        """Return the covariances of two lists of points, without noise; shape (first, second)."""
        distance, elapsed = _distances(first, second)
        exponent = distance * (-1 / self.length) + elapsed * (0.5 * math.log1p(-self.epsilon))
        covariance: Matrix = self.scale * np.exp(exponent)
        return covariance


def likelihood(kernel: Kernel, points: Matrix, targets: Matrix) -> tuple[float, Matrix]:
    """Return the log marginal likelihood, and its derivatives by log length, log scale, epsilon and log noise."""
    distance, elapsed = _distances(points, points)
    clean, count = kernel.covariance(points, points), len(targets)
    factor = _factor(clean, kernel.noise)
    inverse = _solve(factor, np.eye(count))
    weights = inverse @ targets
    value = -0.5 * targets @ weights - np.log(np.diag(factor)).sum() - 0.5 * count * math.log(2 * math.pi)
    # d/dp = trace((w w' - K^-1) dK/dp) / 2, and every dK/dp but the noise's is the covariance times something.
    outer = np.outer(weights, weights) - inverse
    weighted = outer * clean
    gradient = 0.5 * np.array(
        [
            (weighted * distance).sum() / kernel.length,
            weighted.sum(),
            (weighted * elapsed).sum() * (-0.5 / (1 - kernel.epsilon)),
            np.trace(outer) * kernel.noise,
        ]
    )
    return float(value), gradient


def fit_kernel(points: Matrix, targets: Matrix) -> Kernel:
    """Return the kernel of the highest marginal likelihood, by L-BFGS-B; of many rows an even share is used."""
    from scipy.optimize import minimize

    if len(targets) > FITTED:
        chosen = np.unique(np.linspace(0, len(targets) - 1, FITTED).round().astype(int))
        points, targets = points[chosen], targets[chosen]

    def loss(free: Matrix) -> tuple[float, Matrix]:
        value, gradient = likelihood(_kernel(free), points, targets)
        return -value, -gradient

    start = Kernel()
    first = [math.log(start.length), math.log(start.scale), start.epsilon, math.log(start.noise)]
    optimum = minimize(loss, first, jac=True, method="L-BFGS-B", bounds=BOUNDS, options={"maxiter": 30})
    return _kernel(np.asarray(optimum.x, dtype=np.float64))


def best_window(points: Matrix, targets: Matrix, least: int) -> int:
    """Return how many of the rows, newest first but `least`, are most likely per row under the default kernel."""
    from scipy.linalg import solve_triangular

    count = len(targets)
    if count <= least:
        return count
    kernel = Kernel()
    factor = _factor(kernel.covariance(points, points), kernel.noise)
    residual = solve_triangular(factor, targets, lower=True, check_finite=False)
    per_row = np.cumsum(-0.5 * residual**2 - np.log(np.diag(factor)))
    windows = np.unique([*range(least, count, 10), count])
    return int(windows[np.argmax(per_row[windows - 1] / windows)])


@final
class Posterior:
    """The posterior after observations; pending points lower its variance and leave its mean."""

    def __init__(self, kernel: Kernel, points: Matrix, targets: Matrix, pending: Matrix | None = None) -> None:
        self._kernel = kernel
        count = len(targets)
        everything = points if pending is None or not len(pending) else np.concatenate([points, pending])
        factor = _factor(kernel.covariance(everything, everything), kernel.noise)
        # The corner of the factor of all points is the factor of the observed ones.
        self._weights = _solve(factor[:count, :count], targets)
        self._factor = factor
        self._points = everything

    def predict(self, points: Matrix) -> tuple[Matrix, Matrix]:
        """Return mean and standard deviation of the function (without noise) at points of shape (q, 1 + d)."""
        mean, deviation, _, _ = self._predict(points)
        return mean, deviation

    def upper_bound(self, points: Matrix, kappa: float) -> tuple[Matrix, Matrix]:
        """Return mean + kappa * standard deviation, shape (q,), and its gradient by x, shape (q, d)."""
        mean, deviation, near, solved = self._predict(points)
        count = len(self._weights)
        # dk/dx = -2 (x - x') k / length, so every gradient is a weighted mean of differences.
        by_mean = self._pull(points, near[:count] * self._weights[:, None], self._points[:count])
        by_variance = self._pull(points, near * solved, self._points) * -2
        gradient: Matrix = by_mean + (kappa / (2 * deviation))[:, None] * by_variance
        return mean + kappa * deviation, gradient

    def _predict(self, points: Matrix) -> tuple[Matrix, Matrix, Matrix, Matrix]:
        near = self._kernel.covariance(self._points, points)
        solved = _solve(self._factor, near)
        mean: Matrix = self._weights @ near[: len(self._weights)]
        variance = self._kernel.scale - (near * solved).sum(axis=0)
        deviation: Matrix = np.sqrt(np.maximum(variance, 1e-9 * self._kernel.scale))
        return mean, deviation, near, solved

    def _pull(self, points: Matrix, weights: Matrix, towards: Matrix) -> Matrix:
        total = weights.sum(axis=0)[:, None] * points[:, 1:] - weights.T @ towards[:, 1:]
        pulled: Matrix = total * (-2 / self._kernel.length)
        return pulled


def _kernel(free: Sequence[float] | Matrix) -> Kernel:
    return Kernel(
        length=math.exp(free[0]), scale=math.exp(free[1]), epsilon=float(free[2]), noise=math.exp(free[3])
    )


def _distances(first: Matrix, second: Matrix) -> tuple[Matrix, Matrix]:
    """Return squared distances of x and distances in time, each of shape (first, second)."""
    a, b = first[:, 1:], second[:, 1:]
    squared = (a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1)[None, :] - 2 * (a @ b.T)
    np.maximum(squared, 0, out=squared)
    elapsed: Matrix = np.abs(first[:, :1] - second[:, 0][None, :])
    return squared, elapsed


def _factor(covariance: Matrix, noise: float) -> Matrix:
    from scipy.linalg import cholesky

    noisy = covariance + noise * np.eye(len(covariance))
    factor: Matrix = cholesky(noisy, lower=True, overwrite_a=True, check_finite=False)
    return factor


def _solve(factor: Matrix, values: Matrix) -> Matrix:
    from scipy.linalg import cho_solve

    solved: Matrix = cho_solve((factor, True), values, check_finite=False)
    return solved
