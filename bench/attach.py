"""What attaching costs, and what the called form costs: trials of about a second, against the bare loop.

One member, one process. The bare loop does the same arithmetic and saves as often. The forms take turns, and each
is compared with the bare loop before it. Other load on the machine disturbs wall time; processor time less so.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"

import numpy as np

import phyla
from machine import facts
from real_load import STEPS_PER_TRIAL, calibrate, fresh, plain, step

PRODUCTS = 1


def make(home: Path, trials: int, train: Callable[[phyla.Trial], object] | None = None) -> phyla.Study:
    """Return a study of one member."""
    strategy = phyla.PBT(
        population_size=1, steps_per_trial=STEPS_PER_TRIAL, total_steps=trials * STEPS_PER_TRIAL, quorum=0
    )
    return phyla.Study("load", {"lr": phyla.Float(0.1, 1.0)}, phyla.Maximize("score"), strategy, train, home=home)


def train(trial: phyla.Trial) -> None:
    """Train one trial."""
    weights = np.load(trial.source.path / "weights.npy") if trial.source else fresh()
    for _ in trial.steps():
        weights = step(weights, PRODUCTS)
    np.save(trial.checkpoint_dir / "weights.npy", weights)
    trial.report(score=trial.params["lr"])


def called(home: Path, trials: int) -> None:
    """Let phyla call a training function."""
    make(home, trials, train).run()


def attached(home: Path, trials: int) -> None:
    """Iterate over the trials."""
    with phyla.attach(make(home, trials)) as job:
        for trial in job.trials():
            train(trial)


def polled(home: Path, trials: int) -> None:
    """Ask at every step of one loop."""
    weights, at = fresh(), 0
    with phyla.attach(make(home, trials)) as job:
        member = job.member()
        while True:
            answer = member.poll(
                at,
                checkpoint=lambda folder: np.save(folder / "weights.npy", weights),  # noqa: B023  # called at once
                metrics=None if at % STEPS_PER_TRIAL else {"score": 1.0},  # as often as the others report
            )
            if answer.stop:
                return
            weights, at = step(weights, PRODUCTS), answer.step + 1


def timed(work: Callable[[], None]) -> tuple[float, float]:
    """Return the wall time and the processor time of some work, in seconds."""
    started, used = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - started, time.process_time() - used


def main() -> None:
    """Print the table and write the JSON."""
    global PRODUCTS
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("bench/results/attach.json"))
    options = parser.parse_args()
    PRODUCTS = calibrate()
    forms = {"called": called, "attached": attached, "polled": polled}
    for form in forms.values():
        with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
            form(Path(folder), 1)  # Imports come first.
    rows: list[dict[str, list[float]]] = []
    for _ in range(options.repeats):
        row: dict[str, list[float]] = {}
        for name, form in forms.items():
            with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
                bare = timed(lambda: plain(options.trials, PRODUCTS, Path(folder)))
            with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
                ours = timed(lambda: form(Path(folder), options.trials))  # noqa: B023  # called at once
            row[name] = [one / other for one, other in zip(ours, bare, strict=True)]
        rows.append(row)
        print("  ".join(f"{name} {wall:.3f} {used:.3f}" for name, (wall, used) in row.items()), flush=True)
    print(f"\n{'against the bare loop':<24}{'wall time':>12}{'processor':>12}{'wanted':>10}")
    ratios = {name: [statistics.median(row[name][i] for row in rows) for i in (0, 1)] for name in forms}
    for name, (wall, used) in ratios.items():
        print(f"{name:<24}{wall:>12.4f}{used:>12.4f}{1.01:>10}")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({"machine": facts(), "rows": rows, "ratios": ratios}, indent=2))


if __name__ == "__main__":
    main()
