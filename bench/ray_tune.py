"""Trials a second end to end, against Ray Tune's PBT with reused actors, on the same toy and machine.

Ray needs an environment of its own: `python -m venv ray && ray/bin/pip install "ray[tune]"`, then
`python bench/ray_tune.py --ray ray/bin/python`. Both run the toy of `bench/end_to_end.py` on two processes: 20
members, 50 trials of 5 steps each, a checkpoint at the end of each.
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
from typing import Any

POPULATION, TRIALS, STEPS = 20, 50, 5


def ray_tune(folder: str) -> float:
    """Return how many trials a second Ray runs, from the first result to the last."""
    import ray
    from ray import tune
    from ray.tune.schedulers import PopulationBasedTraining

    class Toy(tune.Trainable):
        def setup(self, config: dict[str, Any]) -> None:
            self.theta, self.h = [0.9, 0.9], (config["h0"], config["h1"])

        def step(self) -> dict[str, float]:
            for _ in range(STEPS):
                self.theta = [t - 0.1 * w * t for t, w in zip(self.theta, self.h, strict=True)]
            return {"Q": 1.2 - 0.75 * self.theta[0] ** 2 - self.theta[1] ** 2, "at": time.time()}

        def save_checkpoint(self, directory: str) -> None:
            (Path(directory) / "theta.json").write_text(json.dumps(self.theta))

        def load_checkpoint(self, directory: Any) -> None:
            self.theta = json.loads((Path(directory) / "theta.json").read_text())

        def reset_config(self, config: dict[str, Any]) -> bool:
            self.theta, self.h = [0.9, 0.9], (config["h0"], config["h1"])
            return True

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    uniform = {"h0": tune.uniform(0.0, 1.0), "h1": tune.uniform(0.0, 1.0)}
    tuner = tune.Tuner(
        Toy,
        param_space=uniform,
        tune_config=tune.TuneConfig(
            metric="Q",
            mode="max",
            num_samples=POPULATION,
            reuse_actors=True,
            scheduler=PopulationBasedTraining(perturbation_interval=1, hyperparam_mutations=uniform),
        ),
        run_config=tune.RunConfig(
            storage_path=folder,
            verbose=0,
            stop={"training_iteration": TRIALS},
            checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=1, num_to_keep=2),
        ),
    )
    began = time.time()
    results: Any = tuner.fit()
    last = max(result.metrics["at"] for result in results)
    first = min(result.metrics_dataframe["at"].min() for result in results)
    assert len(results) == POPULATION
    print(f"Ray took {time.time() - began:.1f} s in all", file=sys.stderr)
    return POPULATION * TRIALS / float(last - first)


def main() -> None:
    """Print the table and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ray", type=Path, help="a Python that has Ray")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--where", type=Path, default=Path.cwd(), help="a folder on the disk to measure")
    parser.add_argument("--out", type=Path, default=Path("bench/results/ray_tune.json"))
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        print(f"rate {ray_tune(options.inside)}")
        return
    if options.ray is None:
        parser.error("name a Python that has Ray, with --ray")
    from end_to_end import study
    from machine import facts

    rows = []
    for _ in range(options.repeats):
        with tempfile.TemporaryDirectory(dir=options.where) as folder:
            _, busy = study(Path(folder) / "home")
        with tempfile.TemporaryDirectory(dir=options.where) as folder:
            command = [str(options.ray), __file__, "--inside", folder]
            # Ray's workers import this file by its name.
            environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
            printed = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
        rows.append({"phyla": POPULATION * TRIALS / busy, "ray": float(printed.split("rate ")[-1])})
        print("  ".join(f"{name} {rate:7.1f}/s" for name, rate in rows[-1].items()), flush=True)
    ratio = statistics.median(row["phyla"] / row["ray"] for row in rows)
    print(f"\nphyla's trials a second, as a multiple of Ray's: {ratio:.1f} (median of {len(rows)}; wanted 8)")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({"machine": facts(options.where), "rows": rows, "ratio": ratio}, indent=2))


if __name__ == "__main__":
    main()
