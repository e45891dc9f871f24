"""A real load: the wall time of `phyla run`, beside plain training in as many processes, and Ray Tune.

Every trial computes for about a second (matrix products in NumPy, one thread) and saves 5 MB. All train eight
models for the same number of steps on two processes, in turns, start and end included. Plain training takes one
model after the other and flushes a file once a trial; it copies and explores nothing.

Run: python bench/real_load.py [--repeats 10] [--ray], with the environment of `scripts/test`, which has Ray.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"

import numpy as np
import numpy.typing as npt

import phyla

MEMBERS, PROCESSES, STEPS_PER_TRIAL, COPIES = 8, 2, 50, 16
PRODUCTS = int(os.environ.get("BENCH_PRODUCTS", "1"))
TRIALS = int(os.environ.get("BENCH_TRIALS", "6"))
Weights = npt.NDArray[np.float64]


def step(weights: Weights, products: int) -> Weights:
    """Do one training step's worth of arithmetic."""
    for _ in range(products):
        weights = np.tanh(weights @ weights.T * 0.01)
    return weights


def trained(weights: Weights) -> Weights:
    """Return the weights after a trial."""
    return step(weights, STEPS_PER_TRIAL * PRODUCTS)


def fresh() -> Weights:
    """Return the weights to start from."""
    return np.random.default_rng(0).normal(size=(200, 200))


def save(weights: Weights, folder: Path) -> Path:
    """Write a checkpoint of 5 MB."""
    np.save(folder / "weights.npy", np.stack([weights] * COPIES))
    return folder / "weights.npy"


def load(folder: Path) -> Weights:
    """Read a checkpoint."""
    weights: Weights = np.load(folder / "weights.npy")[0]
    return weights


def train(trial: phyla.Trial) -> None:
    """Train one trial."""
    save(trained(load(trial.source.path) if trial.source else fresh()), trial.checkpoint_dir)
    trial.report(score=trial.params["lr"])


study = phyla.Study(
    name="load",
    space=phyla.Space(lr=phyla.Float(0.1, 1.0)),
    objective=phyla.Maximize("score"),
    strategy=phyla.PBT(
        population_size=MEMBERS, steps_per_trial=STEPS_PER_TRIAL, total_steps=TRIALS * STEPS_PER_TRIAL
    ),
    train=train,
)


def plain(trials: int, products: int, folder: Path) -> None:
    """Train one model without phyla; save once a trial, as anybody would."""
    weights = fresh()
    for _ in range(trials):
        weights = step(weights, STEPS_PER_TRIAL * products)
        with save(weights, folder).open("rb+") as file:
            os.fsync(file.fileno())


def ray_tune(folder: Path) -> None:
    """Train the models with Ray Tune's PBT."""
    import ray
    from ray import tune
    from ray.tune.schedulers import PopulationBasedTraining

    class Model(tune.Trainable):
        def setup(self, config: dict[str, Any]) -> None:
            self.weights, self.lr = fresh(), config["lr"]

        def step(self) -> dict[str, float]:
            self.weights = trained(self.weights)
            return {"score": self.lr}

        def save_checkpoint(self, checkpoint_dir: str) -> None:
            save(self.weights, Path(checkpoint_dir))

        def load_checkpoint(self, checkpoint: Any) -> None:
            self.weights = load(Path(checkpoint))

        def reset_config(self, new_config: dict[str, Any]) -> bool:
            self.lr = new_config["lr"]
            return True

    ray.init(num_cpus=PROCESSES, include_dashboard=False, log_to_driver=False)
    space = {"lr": tune.uniform(0.1, 1.0)}
    scheduler = PopulationBasedTraining(perturbation_interval=1, hyperparam_mutations=space)
    results = tune.Tuner(
        Model,
        param_space=space,
        tune_config=tune.TuneConfig(
            metric="score", mode="max", num_samples=MEMBERS, reuse_actors=True, scheduler=scheduler
        ),
        run_config=tune.RunConfig(
            storage_path=str(folder),
            verbose=0,
            stop={"training_iteration": TRIALS},
            checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=1, num_to_keep=2),
        ),
    ).fit()
    assert len(results) == MEMBERS
    assert not results.errors, results.errors


def calibrate() -> int:
    """Return how many products make a step of 20 ms."""
    weights, count, started = fresh(), 0, time.perf_counter()
    while time.perf_counter() - started < 1.0:
        weights, count = step(weights, 1), count + 1
    return max(1, count // STEPS_PER_TRIAL)


def seconds(way: str, where: Path) -> float:
    """Return the wall time of a way to train, in processes of its own; NaN if Ray Tune failed."""
    with tempfile.TemporaryDirectory(dir=where) as folder:
        commands = {
            "phyla": [["-m", "phyla.cli", "run", __file__, "--workers", str(PROCESSES), "--home", folder]],
            "plain": [[__file__, "--plain", str(Path(folder, str(number)))] for number in range(PROCESSES)],
            "Ray Tune": [[__file__, "--inside-ray", folder]],
        }
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
        started = time.perf_counter()
        running = [
            subprocess.Popen([sys.executable, *words], env=environment, stdout=subprocess.DEVNULL)
            for words in commands[way]
        ]
        statuses = [process.wait() for process in running]
        if not any(statuses):
            return time.perf_counter() - started
        if way != "Ray Tune":
            raise SystemExit(f"{way} failed")
        # It deletes checkpoints that members are about to copy: "does not exist on storage anymore".
        return math.nan


def median(ratios: list[float]) -> float:
    """Return the median over the runs that ended well."""
    return statistics.median([ratio for ratio in ratios if not math.isnan(ratio)] or [math.nan])


def main() -> None:
    """Print the table and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=6, help="trials per member")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--ray", action="store_true", help="measure Ray Tune, too")
    parser.add_argument("--where", type=Path, default=Path.cwd(), help="a folder on the disk to measure")
    parser.add_argument("--out", type=Path, default=Path("bench/results/real_load.json"))
    parser.add_argument("--plain", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--inside-ray", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.plain:
        options.plain.mkdir()
        for _ in range(MEMBERS // PROCESSES):
            plain(TRIALS, PRODUCTS, options.plain)
    elif options.inside_ray:
        ray_tune(options.inside_ray)
    else:
        compare(options)


def compare(options: argparse.Namespace) -> None:
    """Measure all ways in turns."""
    from machine import facts

    os.environ |= {"BENCH_PRODUCTS": str(calibrate()), "BENCH_TRIALS": str(options.trials)}
    ways = ("phyla", "plain", *(["Ray Tune"] if options.ray else []))
    rows = []
    for _ in range(options.repeats):
        rows.append({way: seconds(way, options.where) for way in ways})
        print("  ".join(f"{way} {took:.2f} s" for way, took in rows[-1].items()), flush=True)
    ratios = {way: median([row[way] / row["plain"] for row in rows]) for way in ways if way != "plain"}
    print(f"\n{'wall time against plain training':<40}{'measured':>10}{'wanted':>10}")
    for way, ratio in ratios.items():
        print(f"{way:<40}{ratio:>10.3f}{'1.03' if way == 'phyla' else '':>10}")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({"machine": facts(options.where), "rows": rows, "ratios": ratios}, indent=2))


if __name__ == "__main__":
    main()
