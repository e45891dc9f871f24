"""The digits once more, with the validation score reported within a trial, and the test score at its end.

A trial reports 20 times, or every 10 steps if it is short.
"""

from pathlib import Path
from typing import Any

import digits_problem
import numpy as np
from comparing import Budget, Problem, ended_and_stopped
from digits_problem import SPACE, fresh, nll, split, step

import phyla

NAME = "digits_reports"
TITLE = "The digits, scored within trials"
REPORT = digits_problem.REPORT
MAXIMIZE = False
BUDGET = Budget(members=24, steps_per_trial=1000, total_steps=1000)
QUICK = Budget(members=6, steps_per_trial=100, total_steps=100)
COST_S = 6.0
USES = (digits_problem,)


def details(results: phyla.Results) -> dict[str, Any]:
    """Return what completed, and what was stopped."""
    return ended_and_stopped(results, "test")


def problem(seed: int) -> Problem:
    """Make the problem."""
    parts = split(seed)
    x, y = parts["train"]

    def load(path: Path) -> dict[str, Any]:
        with np.load(path / "network.npz") as file:
            return {name: file[name] for name in file.files}

    def train(trial: phyla.Trial) -> None:
        rng = np.random.default_rng(trial.seed)
        weights = load(trial.source.path) if trial.source else fresh(rng)
        params: Any = trial.params.flat()
        every = max(10, (trial.end_step - trial.start_step) // 20)
        with np.errstate(over="ignore", invalid="ignore"):
            for at in trial.steps():
                batch = rng.integers(len(y), size=params["batch"])
                noisy = x[batch] + params["noise"] * rng.normal(size=(len(batch), 64))
                step(weights, noisy, y[batch], params)
                if (at + 1) % every == 0 or at + 1 == trial.end_step:
                    trial.report(nll=nll(weights, parts["validation"]), step=at + 1)
            trial.report(test=nll(weights, parts["test"]))
        np.savez(trial.checkpoint_dir / "network.npz", **weights)

    def final(path: Path) -> dict[str, float]:
        weights = load(path)
        return {"report": nll(weights, parts["test"]), "tune": nll(weights, parts["validation"])}

    return Problem(space=SPACE, objective=phyla.Minimize("nll"), train=train, final=final, details=details)
