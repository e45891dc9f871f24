"""A real load: a population costs the wall time of one model, when there is a worker for each member.

Every trial computes for about a second (matrix products in NumPy, one thread). Compared, in one run: the same
steps as plain training, in as many bare processes at once as there are members, and in a single one. The first
is the fair floor on a machine whose cores slow each other down.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"

import numpy as np
import numpy.typing as npt

import phyla
from machine import facts

MEMBERS = 2
STEPS_PER_TRIAL = 50


def step(weights: npt.NDArray[np.float64], products: int) -> npt.NDArray[np.float64]:
    """Do one training step's worth of arithmetic."""
    for _ in range(products):
        weights = np.tanh(weights @ weights.T * 0.01)
    return weights


def fresh() -> npt.NDArray[np.float64]:
    """Return the weights to start from."""
    return np.random.default_rng(0).normal(size=(200, 200))


def train(trial: phyla.Trial) -> None:
    """Train one trial."""
    products = int(os.environ["BENCH_PRODUCTS"])
    weights = np.load(trial.source.path / "weights.npy") if trial.source else fresh()
    for _ in trial.steps():
        weights = step(weights, products)
    np.save(trial.checkpoint_dir / "weights.npy", weights)
    trial.report(score=trial.params["lr"])


def plain(trials: int, products: int) -> None:
    """Train one model without phyla; save once a trial, as anybody would."""
    weights = fresh()
    for _ in range(trials):
        for _ in range(STEPS_PER_TRIAL):
            weights = step(weights, products)
        with tempfile.TemporaryFile() as file:
            np.save(file, weights)
            file.flush()
            os.fsync(file.fileno())


def calibrate() -> int:
    """Return how many products make a step of 20 ms."""
    weights, count = fresh(), 0
    started = time.perf_counter()
    while time.perf_counter() - started < 1.0:
        weights = step(weights, 1)
        count += 1
    return max(1, count // STEPS_PER_TRIAL)


def processes(count: int, trials: int, products: int) -> float:
    """Return the wall time of plain training in `count` processes at once."""
    command = [sys.executable, __file__, "--plain", str(trials), "--products", str(products)]
    started = time.perf_counter()
    running = [subprocess.Popen(command) for _ in range(count)]
    for process in running:
        process.wait()
    return time.perf_counter() - started


def population(home: Path, trials: int) -> float:
    """Return the wall time of the study, start and end included."""
    study = phyla.Study(
        name="load",
        space=phyla.Space(lr=phyla.Float(0.1, 1.0)),
        objective=phyla.Maximize("score"),
        strategy=phyla.PBT(
            population_size=MEMBERS, steps_per_trial=STEPS_PER_TRIAL, total_steps=trials * STEPS_PER_TRIAL
        ),
        train=train,
        home=home,
    )
    started = time.perf_counter()
    study.run(workers=MEMBERS)
    return time.perf_counter() - started


def main() -> None:
    """Print the table and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=20, help="trials per member")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("bench/results/real_load.json"))
    parser.add_argument("--plain", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--products", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.plain:
        plain(options.plain, options.products)
        return
    products = calibrate()
    os.environ["BENCH_PRODUCTS"] = str(products)
    rows = []
    for _ in range(options.repeats):
        with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
            row = {
                "population": population(Path(folder), options.trials),
                "plain at once": processes(MEMBERS, options.trials, products),
                "plain alone": processes(1, options.trials, products),
            }
        rows.append(row)
        print("  ".join(f"{name} {seconds:.2f} s" for name, seconds in row.items()), flush=True)
    ratios = {
        name: statistics.median(row["population"] / row[name] for row in rows)
        for name in ("plain at once", "plain alone")
    }
    print(f"\n{'wall time of the population, against':<44}{'measured':>10}{'wanted':>10}")
    print(f"{'one plain training, others beside it':<44}{ratios['plain at once']:>10.3f}{1.05:>10}")
    print(f"{'one plain training, alone':<44}{ratios['plain alone']:>10.3f}{1.05:>10}")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({"machine": facts(), "rows": rows, "ratios": ratios}, indent=2))


if __name__ == "__main__":
    main()
