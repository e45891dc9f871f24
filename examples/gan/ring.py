"""A generator and a discriminator on eight Gaussians in a ring, with a learning rate each.

The two networks are trained against each other, so how fast each one learns has to suit the other at every
moment. No loss says how good the samples are. Fitness is the distance (maximum mean discrepancy) between
samples and data; beside it are reported how many of the eight Gaussians are hit, and the share of samples near
any.

Run it with `phyla run examples/gan/ring.py --study ring`, or `python examples/gan/ring.py`.
"""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

import phyla
from gan.networks import Array, Weights, adam, backward, forward, fresh, load, save

LATENT, HIDDEN, BATCH = 4, 32, 64
MODES, RADIUS, WIDTH = 8, 2.0, 0.2
ANGLES = 2 * np.pi * np.arange(MODES) / MODES
CENTERS = RADIUS * np.stack([np.cos(ANGLES), np.sin(ANGLES)], axis=1)
SAMPLES = 256

SPACE = phyla.Space(
    generator={"lr": phyla.Float(1e-4, 1e-1, log=True)},
    discriminator={"lr": phyla.Float(1e-4, 1e-1, log=True)},
)


def data(count: int, rng: np.random.Generator) -> Array:
    """Draw points from the ring, of shape (count, 2)."""
    return CENTERS[rng.integers(MODES, size=count)] + WIDTH * rng.normal(size=(count, 2))


def generate(generator: Weights, count: int, rng: np.random.Generator) -> Array:
    """Draw points from the generator, of shape (count, 2)."""
    return forward(generator, rng.normal(size=(count, LATENT)))[-1]


def _probability(logit: Array) -> Array:
    return 1.0 / (1.0 + np.exp(-np.clip(logit, -30, 30)))


def play(networks: dict[str, Weights], lr: dict[str, float], rng: np.random.Generator) -> None:
    """Let the discriminator learn from one batch, then the generator."""
    generator, discriminator = networks["generator"], networks["discriminator"]
    both = np.concatenate([data(BATCH, rng), generate(generator, BATCH, rng)])
    real = np.repeat([[1.0], [0.0]], BATCH, axis=0)
    passed = forward(discriminator, both)
    gradients, _ = backward(discriminator, passed, (_probability(passed[-1]) - real) / BATCH)
    adam(discriminator, gradients, lr["discriminator"])

    made = forward(generator, rng.normal(size=(BATCH, LATENT)))
    judged = forward(discriminator, made[-1])
    _, towards = backward(discriminator, judged, (_probability(judged[-1]) - 1.0) / BATCH)
    gradients, _ = backward(generator, made, towards)
    adam(generator, gradients, lr["generator"])


def discrepancy(one: Array, other: Array) -> float:
    """Return the maximum mean discrepancy of two samples, with Gaussian kernels of two widths.

    Source: Gretton et al. 2012, A kernel two-sample test, equation 5 (the biased estimate, its root).
    """

    def kernel(x: Array, y: Array) -> float:
        squares = np.maximum(0.0, (x**2).sum(axis=1)[:, None] + (y**2).sum(axis=1) - 2 * x @ y.T)
        return float(np.mean([np.exp(-squares / (2 * width**2)).mean() for width in (0.2, 0.8)]))

    return float(np.sqrt(max(0.0, kernel(one, one) + kernel(other, other) - 2 * kernel(one, other))))


def coverage(samples: Array) -> tuple[int, float]:
    """Return how many Gaussians have a fair share of the samples, and the share of samples near any.

    Near is within three standard deviations; a fair share is a quarter of an eighth.
    """
    distance = np.sqrt(((samples[:, None] - CENTERS[None]) ** 2).sum(axis=2))
    near = distance.min(axis=1) < 3 * WIDTH
    hits = np.bincount(distance.argmin(axis=1)[near], minlength=MODES)
    return int((hits >= 0.25 * len(samples) / MODES).sum()), float(near.mean())


def measure(generator: Weights, rng: np.random.Generator, count: int = SAMPLES) -> dict[str, float]:
    """Compare fresh samples with fresh data."""
    samples = generate(generator, count, rng)
    if not np.isfinite(samples).all():
        return {"discrepancy": float("inf"), "modes": 0, "near": 0.0}
    modes, near = coverage(samples)
    return {"discrepancy": discrepancy(samples, data(count, rng)), "modes": modes, "near": near}


def train(trial: phyla.Trial) -> None:
    """Continue both networks from the parent's checkpoint, each with its learning rate."""
    rng = np.random.default_rng(trial.seed)
    if trial.source:
        networks = load(trial.source.path / "networks.npz")
    else:
        networks = {
            "generator": fresh([LATENT, HIDDEN, HIDDEN, 2], rng),
            "discriminator": fresh([2, HIDDEN, HIDDEN, 1], rng),
        }
    params: Any = trial.params
    lr = {which: float(params[which]["lr"]) for which in networks}
    for _ in trial.steps():
        play(networks, lr, rng)
    save(trial.checkpoint_dir / "networks.npz", networks)
    trial.report(measure(networks["generator"], rng))


def make_study(*, members: int = 10, steps: int = 4000, **settings: Any) -> phyla.Study:
    """Make the study.

    Args:
        members: members of the population.
        steps: training steps of each; a twentieth of them make a trial.
        settings: of `phyla.Study`.
    """
    return phyla.Study(
        name="ring",
        space=SPACE,
        objective=phyla.Minimize("discrepancy"),
        strategy=phyla.PBT(
            population_size=members,
            steps_per_trial=max(1, steps // 20),
            total_steps=steps,
            exploit=phyla.strategies.BinaryTournament(),
            explore=phyla.Perturb(factors=(0.5, 2.0)),
            quorum=1.0,
        ),
        train=train,
        **settings,
    )


study = make_study()


def summary(results: phyla.Results) -> str:
    """Say what the best generator does on fresh samples, and which learning rates led there."""
    best = results.best
    if best is None:
        return "no generator has a finite fitness"
    generator = load(best.checkpoint.path / "networks.npz")["generator"]
    found = measure(generator, np.random.default_rng(0), 2000)
    near, discrepancy = found["near"], found["discrepancy"]
    lines = [f"{found['modes']} of {MODES} modes, {near:.0%} of samples near one, discrepancy {discrepancy:.3f}"]
    lines += ["", f"{'from step':>9} {'generator':>10} {'discriminator':>14} {'ratio':>6}"]
    before: object = None
    for segment in results.schedule().segments:
        if segment.params == before:
            continue
        before = segment.params
        lr = {which: float(str(segment.params[f"{which}/lr"])) for which in ("generator", "discriminator")}
        ratio = lr["generator"] / lr["discriminator"]
        lines.append(
            f"{segment.start_step:>9} {lr['generator']:>10.2g} {lr['discriminator']:>14.2g} {ratio:>6.2f}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    print(summary(study.run(workers=2)))
