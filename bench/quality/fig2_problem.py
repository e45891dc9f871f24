"""The toy of figure 2 of Jaderberg et al. 2017: two members, each of which can see one of two directions.

In the variant without exact ties. Whoever never explores or never copies ends at 0.5925; the maximum is 1.2.
"""

from pathlib import Path

import numpy as np
from comparing import Budget, Problem

import phyla

NAME = "fig2"
TITLE = "The toy of figure 2"
REPORT = "Q, at most 1.2"
MAXIMIZE = True
BUDGET = Budget(members=2, steps_per_trial=5, total_steps=100, grid={"h0": [0.0, 1.0]})
QUICK = BUDGET
COST_S = 0.2
USES = ()

SPACE = phyla.Space(
    h0=phyla.Float(0.0, 1.0),
    h1=phyla.Float(0.0, 1.0),
    initial=[{"h0": 1.0, "h1": 0.0}, {"h0": 0.0, "h1": 1.0}],
)


def quality(path: Path) -> float:
    """Return Q of the weights in a checkpoint."""
    theta = np.load(path / "theta.npy")
    return float(1.2 - (0.75 * theta[0] ** 2 + theta[1] ** 2))


def problem(seed: int) -> Problem:
    """Make the problem, which is the same for every seed."""

    def train(trial: phyla.Trial) -> None:
        theta = np.load(trial.source.path / "theta.npy") if trial.source else np.array([0.9, 0.9])
        h = np.array([trial.params["h0"], trial.params["h1"]])
        for _ in trial.steps():
            theta = theta - 0.05 * 2 * h * theta
        np.save(trial.checkpoint_dir / "theta.npy", theta)
        trial.report(q=quality(trial.checkpoint_dir))

    def final(path: Path) -> dict[str, float]:
        return {"report": quality(path), "tune": quality(path)}

    return Problem(space=SPACE, objective=phyla.Maximize("q"), train=train, final=final)
