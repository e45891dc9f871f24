"""The generator and the discriminator of `examples/gan`: two coupled networks, two learning rates."""

from pathlib import Path

import numpy as np
from comparing import Budget, Problem

import phyla
from gan import networks, ring

NAME = "ring"
TITLE = "Eight Gaussians in a ring: a generator against a discriminator"
REPORT = "maximum mean discrepancy of 2,000 fresh samples of the best generator"
MAXIMIZE = False
BUDGET = Budget(
    members=9,
    steps_per_trial=80,
    total_steps=1600,
    grid={"generator/lr": [3e-4, 3e-3, 3e-2], "discriminator/lr": [3e-4, 3e-3, 3e-2]},
)
QUICK = Budget(
    members=4,
    steps_per_trial=5,
    total_steps=20,
    grid={"generator/lr": [1e-3, 1e-2], "discriminator/lr": [1e-3, 1e-2]},
)
COST_S = 7.0
USES = (networks, ring)


def problem(seed: int) -> Problem:
    """Make the problem."""

    def final(path: Path) -> dict[str, float]:
        generator = networks.load(path / "networks.npz")["generator"]
        report, tune = (
            ring.measure(generator, np.random.default_rng([seed, which, 11]), 2000) for which in range(2)
        )
        return {"report": report["discrepancy"], "modes": report["modes"], "tune": tune["discrepancy"]}

    return Problem(space=ring.SPACE, objective=phyla.Minimize("discrepancy"), train=ring.train, final=final)
