"""The model behind PB2: kernel, likelihood, posterior, window."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from phyla.strategies.explore.gaussian_process import (
    BOUNDS,
    FITTED,
    Kernel,
    Matrix,
    Posterior,
    best_window,
    fit_kernel,
    likelihood,
)

RNG = np.random.default_rng


def data(count: int, width: int = 3, seed: int = 0) -> tuple[Matrix, Matrix]:
    rng = RNG(seed)
    points = rng.random((count, 1 + width))
    return points, np.sin(4 * points[:, 1]) + points[:, 0] + rng.normal(0, 0.3, count)


def kernels() -> list[Kernel]:
    return [
        Kernel(length=0.3, scale=1.5, epsilon=0.0, noise=0.05),
        Kernel(length=2.0, scale=0.4, epsilon=0.2, noise=0.5),
        Kernel(length=0.05, scale=1.0, epsilon=0.5, noise=0.01),
    ]


@pytest.mark.parametrize("kernel", kernels())
def test_the_likelihood_is_that_of_a_normal_distribution(kernel: Kernel) -> None:
    points, targets = data(12)
    value, _ = likelihood(kernel, points, targets)
    covariance = kernel.covariance(points, points) + kernel.noise * np.eye(12)
    assert value == pytest.approx(multivariate_normal.logpdf(targets, np.zeros(12), covariance))


@pytest.mark.parametrize("kernel", kernels())
def test_its_gradient_is_exact(kernel: Kernel) -> None:
    points, targets = data(15)
    _, gradient = likelihood(kernel, points, targets)
    step = 1e-6
    for index, name in enumerate(("length", "scale", "epsilon", "noise")):
        value = getattr(kernel, name)
        if name == "epsilon":
            up, down = value + step, value - step
        else:
            up, down = value * math.exp(step), value * math.exp(-step)
        after, _ = likelihood(replace(kernel, **{name: up}), points, targets)
        before, _ = likelihood(replace(kernel, **{name: down}), points, targets)
        assert gradient[index] == pytest.approx((after - before) / (2 * step), rel=1e-4, abs=1e-5), name


@pytest.mark.parametrize("kernel", kernels())
def test_the_gradient_of_the_upper_bound_is_exact(kernel: Kernel) -> None:
    points, targets = data(20)
    posterior = Posterior(kernel, points, targets, data(4, seed=1)[0])
    asked = RNG(2).random((5, 4))
    _, gradient = posterior.upper_bound(asked, 0.7)
    step = 1e-6
    for column in range(3):
        moved = np.zeros_like(asked)
        moved[:, 1 + column] = step
        after, _ = posterior.upper_bound(asked + moved, 0.7)
        before, _ = posterior.upper_bound(asked - moved, 0.7)
        assert gradient[:, column] == pytest.approx((after - before) / (2 * step), rel=1e-4, abs=1e-5)


def test_the_posterior_is_that_of_the_textbook_and_its_bound_adds_standard_deviations() -> None:
    kernel, (points, targets), asked = kernels()[1], data(10), data(3, seed=5)[0]
    noisy = kernel.covariance(points, points) + kernel.noise * np.eye(10)
    near = kernel.covariance(points, asked)
    mean = near.T @ np.linalg.solve(noisy, targets)
    variance = np.diag(kernel.covariance(asked, asked) - near.T @ np.linalg.solve(noisy, near))
    found, deviation = Posterior(kernel, points, targets).predict(asked)
    assert found == pytest.approx(mean)
    assert deviation == pytest.approx(np.sqrt(variance))
    bound, _ = Posterior(kernel, points, targets).upper_bound(asked, 2.0)
    assert bound == pytest.approx(mean + 2.0 * np.sqrt(variance))


def test_pending_points_lower_the_deviation_and_leave_the_mean() -> None:
    kernel, (points, targets), asked = Kernel(), data(10), data(6, seed=5)[0]
    mean, deviation = Posterior(kernel, points, targets).predict(asked)
    with_pending, smaller = Posterior(kernel, points, targets, asked[:1]).predict(asked)
    assert with_pending == pytest.approx(mean)
    assert (smaller < deviation).all()
    assert smaller[0] < 0.8 * deviation[0]


def test_without_forgetting_time_does_not_matter() -> None:
    early, late = data(8)[0], data(8)[0]
    late[:, 0] = 1 - late[:, 0]
    stationary, drifting = Kernel(epsilon=0.0), Kernel(epsilon=0.3)
    assert stationary.covariance(early, late) == pytest.approx(stationary.covariance(early, early))
    assert Kernel(epsilon=1e-9).covariance(early, late) == pytest.approx(stationary.covariance(early, early))
    assert (drifting.covariance(early, late) < stationary.covariance(early, late)).any()


def test_noise_is_noise_and_no_jitter() -> None:
    rng = RNG(0)
    points = np.repeat(rng.random((20, 2)), 4, axis=0)
    targets = rng.normal(0, 1, 80)
    kernel = fit_kernel(points, targets)
    assert kernel.noise > 0.3
    assert math.exp(BOUNDS[3][0]) >= 1e-3
    _, certain = Posterior(replace(kernel, noise=1e-10), points[::4], targets[::4]).predict(points[::4])
    _, honest = Posterior(replace(kernel, noise=1.0, scale=1.0), points[::4], targets[::4]).predict(points[::4])
    assert certain.max() < 1e-3
    assert honest.min() > 0.2


def test_a_fit_finds_numbers_that_are_more_likely() -> None:
    rng = RNG(3)
    points = rng.random((150, 2))
    points[:, 0] = np.linspace(0, 1, 150)
    targets = np.sin(20 * points[:, 1]) + rng.normal(0, 0.1, 150)
    kernel = fit_kernel(points, targets)
    assert likelihood(kernel, points, targets)[0] > likelihood(Kernel(), points, targets)[0] + 50
    assert kernel.noise == pytest.approx(0.01, rel=0.5)
    assert kernel.length < 0.2
    moving = np.sin(6 * (points[:, 1] + 2 * points[:, 0]))
    assert fit_kernel(points, moving).epsilon > fit_kernel(points, targets).epsilon
    assert all(low <= 0.5 for low, _ in BOUNDS[2:3])


def test_the_window_is_the_likeliest_per_row_and_never_below_the_least() -> None:
    points, targets = data(320, seed=4)
    targets[230:] += RNG(0).normal(0, 5, 90)
    chosen = best_window(points, targets, 200)
    per_row = {w: likelihood(Kernel(), points[:w], targets[:w])[0] / w for w in [*range(200, 320, 10), 320]}
    assert chosen == max(per_row, key=per_row.__getitem__)
    assert 200 <= chosen <= 240
    assert best_window(points[:150], targets[:150], 200) == 150


def test_a_fit_to_many_rows_is_one_to_an_even_share_of_them() -> None:
    points, targets = data(2 * FITTED - 1)
    assert fit_kernel(points, targets) == fit_kernel(points[::2], targets[::2])
