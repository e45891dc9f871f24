"""PB2 against perturbing: a population whose best hyperparameters move while it trains.

Each trial adds to the score of its weights what its two hyperparameters are worth at their age, and some noise.
The best place goes from one corner of the square to the opposite one. Compared is the best score of a study, mean
and standard error over seeds, and the worst seed; nothing is trained, so the numbers say how well the rules
explore, not what they gain in practice.

Run: python bench/quality/explore.py [--quick] [--output bench/results/explore.json]
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

BENCH = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(BENCH), str(BENCH.parent / "tests/support/machine")]
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from machine import facts
from phyla.machine import TrainRules
from phyla.records import Maximize, TrialRecord
from phyla.space import Float, Space
from phyla.strategies import PB2, PBT, Explore, Perturb, Truncation
from simulation import Simulation

TRIALS, WORKERS = 40, 2
SPACE = Space(x=Float(0.0, 1.0), y=Float(0.0, 1.0))
RULES: dict[str, Explore] = {
    "Perturb()": Perturb(),
    "Perturb(resample=0.25)": Perturb(resample=0.25),
    "PB2(radius=1.0)": PB2(radius=1.0),
    "PB2()": PB2(),
}


def train(score: Any, trial: TrialRecord) -> tuple[float, float]:
    x: Any = trial.params["x"]
    y: Any = trial.params["y"]
    best = 0.15 + 0.7 * trial.start_step / TRIALS
    noise = float(np.random.default_rng(trial.seed).normal(0, 0.1))
    after = float((score or 0.0) + 1 - 6 * (x - best) ** 2 - 6 * (y - 1 + best) ** 2 + noise)
    return after, after


def best_score(explore: Explore, members: int, seed: int) -> float:
    strategy = PBT(
        population_size=members,
        steps_per_trial=1,
        total_steps=TRIALS,
        exploit=Truncation(0.25),
        explore=explore,
        # So that no line of training is longer than another.
        quorum=1.0,
    )
    simulation = Simulation(TrainRules(space=SPACE, objective=Maximize("Q"), strategy=strategy), train, seed=seed)
    simulation.run(WORKERS, np.random.default_rng(seed))
    with simulation.store.reader(simulation.study.id) as reader:
        return max(trial.fitness for trial in reader.trials() if trial.fitness is not None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few seeds, one size")
    parser.add_argument("--output", type=Path, help="also write the figures here, as JSON")
    options = parser.parse_args()
    seeds = 2 if options.quick else 10
    rows = []
    for members in (4,) if options.quick else (4, 8, 16):
        for name, explore in RULES.items():
            begin = time.perf_counter()
            scores = [best_score(explore, members, seed) for seed in range(seeds)]
            row = {
                "members": members,
                "explore": name,
                "mean": round(float(np.mean(scores)), 2),
                "stderr": round(float(np.std(scores, ddof=1) / np.sqrt(seeds)), 2),
                "worst": round(min(scores), 1),
                "seconds": round(time.perf_counter() - begin, 1),
            }
            rows.append(row)
            score = "{mean:>6} +- {stderr:<5} worst {worst:>5}".format(**row)
            print(f"{members:>3} members  {name:<24} {score}  {row['seconds']:>6} s")
    if options.output:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps({"machine": facts(), "seeds": seeds, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
