"""A study in which some members diverge: a high learning rate makes the loss grow until it is nan."""

import json
import math
import time
from pathlib import Path
from typing import Any

import phyla
from phyla.worker import session_of

STEPS = 200
TOO_HIGH = 0.6
BOUND = 1.5
PATIENCE_S = 180.0
"""How long training waits to be stopped before the test fails."""


def train(trial: phyla.Trial) -> None:
    """Minimise x^2 by gradient descent; who diverges goes on until somebody stops it."""
    x: float = json.loads((trial.source.path / "x.json").read_text()) if trial.source else 1.0
    deadline = time.monotonic() + PATIENCE_S
    log = trial.working_dir / "steps.txt"
    left_to_run = _is_left_to_run(trial)
    done = 0
    try:
        for step in trial.steps():
            done += 1
            x = math.inf if abs(x) > 1e100 else x * (1 - 2 * trial.params["lr"] / TOO_HIGH)
            loss = x * x if math.isfinite(x) else math.nan
            trial.report(loss=loss, step=step + 1)
            if not loss <= BOUND and not left_to_run:
                # Reports are sent once a second, which is long for so few steps.
                while not trial.should_stop:
                    if time.monotonic() > deadline:
                        raise TimeoutError(f"trial {trial.id} was not stopped")
                    time.sleep(0.005)
    finally:
        log.write_text(str(done))
    if trial.stop_reason is None:
        (trial.checkpoint_dir / "x.json").write_text(json.dumps(x))


def _is_left_to_run(trial: phyla.Trial) -> bool:
    """Return whether the member was stopped as often as it may be; the folders of its trials tell."""
    stopped, at = 0, session_of(trial).record
    file = trial.working_dir.parent / f"replaced-{trial.id}.json"
    if at.replaces is not None:
        before = trial.working_dir.parent / f"replaced-{at.replaces}.json"
        stopped = json.loads(before.read_text()) + 1
    file.write_text(json.dumps(stopped))
    return stopped >= 3


def diverging(home: Path, **options: Any) -> phyla.Study:
    """Return the study."""
    options.setdefault("stopping", phyla.strategies.Divergence(above=BOUND))
    return phyla.Study(
        "diverging",
        {"lr": phyla.Float(0.05, 1.5)},
        phyla.Minimize("loss"),
        phyla.PBT(
            population_size=4,
            steps_per_trial=STEPS,
            total_steps=3 * STEPS,
            quorum=1.0,  # so that members complete as many trials as planned, whoever is slow
            exploit=phyla.Truncation(0.25),
            explore=phyla.Perturb(factors=(0.5, 2.0)),
        ),
        train,
        home=home,
        **options,
    )
