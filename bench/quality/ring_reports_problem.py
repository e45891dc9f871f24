"""The ring of Gaussians once more, with the score reported every 80 steps within a trial, and a test score."""

from pathlib import Path
from typing import Any

import numpy as np
import ring_problem
from comparing import Budget, Problem, ended_and_stopped

import phyla
from gan import networks, ring

NAME = "ring_reports"
TITLE = "The ring of Gaussians, scored within trials"
REPORT = ring_problem.REPORT
MAXIMIZE = False
BUDGET = Budget(members=9, steps_per_trial=1600, total_steps=1600)
QUICK = Budget(members=6, steps_per_trial=20, total_steps=20)
COST_S = 7.0
USES = (networks, ring)
EVERY = 80


def details(results: phyla.Results) -> dict[str, Any]:
    """Return what completed, and what was stopped."""
    return ended_and_stopped(results, "test")


def problem(seed: int) -> Problem:
    """Make the problem."""

    def tested(generator: Any) -> float:
        return float(ring.measure(generator, np.random.default_rng([seed, 0, 11]), 2000)["discrepancy"])

    def train(trial: phyla.Trial) -> None:
        rng = np.random.default_rng(trial.seed)
        if trial.source:
            both = networks.load(trial.source.path / "networks.npz")
        else:
            both = {
                "generator": networks.fresh([ring.LATENT, ring.HIDDEN, ring.HIDDEN, 2], rng),
                "discriminator": networks.fresh([2, ring.HIDDEN, ring.HIDDEN, 1], rng),
            }
        params: Any = trial.params
        lr = {which: float(params[which]["lr"]) for which in both}
        for at in trial.steps():
            ring.play(both, lr, rng)
            if (at + 1) % EVERY == 0 or at + 1 == trial.end_step:
                found = ring.measure(both["generator"], rng)
                trial.report(discrepancy=found["discrepancy"], step=at + 1)
        trial.report(test=tested(both["generator"]))
        networks.save(trial.checkpoint_dir / "networks.npz", both)

    def final(path: Path) -> dict[str, float]:
        value = tested(networks.load(path / "networks.npz")["generator"])
        return {"report": value, "tune": value}

    return Problem(
        space=ring.SPACE, objective=phyla.Minimize("discrepancy"), train=train, final=final, details=details
    )
