"""Two goals at odds, with a known front: a point in the plane shall be near two places at once.

f1 is the squared distance from (0, 0), f2 that from (1, 0). Neither can be had without the other for the points
between the two places, so the front is f2 = (1 - sqrt(f1))^2. Gradient descent goes down `share` * f1 +
(1 - share) * f2 with a learning rate and noise; how far from (0, 0) it may end is limited, which cuts the front.
"""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from comparing import Budget, Problem

import phyla

NAME = "tradeoff"
TITLE = "Several metrics: two goals at odds, and a limit"
REPORT = "f1 + f2 of the best checkpoint"
MAXIMIZE = False
BUDGET = Budget(members=16, steps_per_trial=5, total_steps=100)
QUICK = Budget(members=4, steps_per_trial=5, total_steps=15)
COST_S = 3.0
USES = ()

PLACES = np.array([[0.0, 0.0], [1.0, 0.0]])
NOISE = 0.3
FARTHEST = 0.8
LIMIT = f"size <= {FARTHEST}"
SPACE = phyla.Space(share=phyla.Float(0.0, 1.0), lr=phyla.Float(1e-3, 0.5, log=True))
OBJECTIVE = phyla.Constrained(phyla.Pareto(phyla.Minimize("f1"), phyla.Minimize("f2")), subject_to=[LIMIT])
SUMMED = phyla.Constrained(phyla.WeightedSum({"f1": -1.0, "f2": -1.0}), subject_to=[LIMIT])


def goals(point: npt.NDArray[np.float64]) -> dict[str, float]:
    """Return both goals of a point, and how far it is from (0, 0)."""
    f1, f2 = ((point - PLACES) ** 2).sum(axis=1)
    return {"f1": float(f1), "f2": float(f2), "size": float(np.sqrt(f1))}


def details(results: phyla.Results) -> list[list[float]]:
    """Return f1 and f2 of every trial that completed, and whether it is within the limit."""
    found: list[list[float]] = []
    for trial in results.trials():
        if trial.criteria is not None:
            values = trial.criteria.values
            found.append([values["f1"], values["f2"], float(trial.criteria.infeasible is None)])
    return found


def problem(seed: int) -> Problem:
    """Make the problem, which is the same for every seed."""

    def train(trial: phyla.Trial) -> None:
        rng = np.random.default_rng(trial.seed)
        point = np.load(trial.source.path / "point.npy") if trial.source else rng.uniform(-1.0, 2.0, 2)
        params: Any = trial.params
        weights = np.array([[params["share"]], [1.0 - params["share"]]])
        for _ in trial.steps():
            gradient = (weights * 2 * (point - PLACES)).sum(axis=0)
            point = point - params["lr"] * (gradient + NOISE * rng.normal(size=2))
        np.save(trial.checkpoint_dir / "point.npy", point)
        trial.report(goals(point))

    def final(path: Path) -> dict[str, float]:
        found = goals(np.load(path / "point.npy"))
        return {"report": found["f1"] + found["f2"], "tune": found["f1"] + found["f2"]}

    return Problem(space=SPACE, objective=OBJECTIVE, train=train, final=final, details=details)
