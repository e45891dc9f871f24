"""The machine under stress on a virtual clock, and how well a simulation predicts a real study.

Run from the repository: `python bench/simulate.py`.

- *Stress*: 100,000 trials: a population of 100 with 1,000 trials each on 64 workers that are preempted, crash and
  fail, through the real controller, rules and store in memory. Meanwhile the simulation checks that no member has
  two trials, that tokens count up, that steps are counted once and that no more checkpoints are kept than the
  formula says; at the end, that the budget is used up. With a quorum below 1.0 a member that takes over weights
  older than its progress skips trials, so there may be fewer. What is compared is processor time, since others may
  use the machine meanwhile.
- *Agreement*: a study of sleeping trials on two real worker processes, with a quorum of 0.8 and of 1, against its
  prediction. The wall time is that from the first claim to the last trial's end, without the start of the workers.
"""

import argparse
import json
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import phyla
from machine import facts
from phyla.machine import TrainRules
from phyla.testing import LearningCurve, simulate
from phyla.testing.conditions import Conditions
from phyla.testing.simulator import Simulator

CPU_S, MEMORY_MIB, DIFFERENCE = 90.0, 3 * 1024, 0.15
STEPS = 10
SLEEP_S, SPREAD = 0.2, 0.3
MEMBERS, TRIALS = 4, 15
SPACE = phyla.Space(rate=phyla.Float(1e-5, 1.0, log=True), momentum=phyla.Float(0.0, 1.0))
OBJECTIVE = phyla.Maximize("Q")


def stress(population: int, trials: int, workers: int, seed: int = 0) -> dict[str, Any]:
    """Simulate one large study; raise if anything was not as it has to be."""
    strategy = phyla.PBT(population_size=population, steps_per_trial=STEPS, total_steps=STEPS * trials)
    simulator = Simulator(
        TrainRules(space=SPACE, objective=OBJECTIVE, strategy=strategy),
        0,
        Conditions(
            workers=workers,
            trial_s=40.0,
            load_s=2.0,
            save_s=1.0,
            spread=0.3,
            preempt_per_hour=0.2,
            crash_per_hour=0.02,
            restart_s=120.0,
            fail=0.01,
        ),
        fitness=LearningCurve(SPACE, OBJECTIVE, STEPS * trials),
        rng=np.random.default_rng(seed),
    )
    before, began = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    run = simulator.run()
    after = resource.getrusage(resource.RUSAGE_SELF)
    assert run.state == "completed", run.message
    assert 0.99 * population * trials <= run.completed <= population * trials, run.completed
    assert run.steps["kept"] + run.steps["abandoned"] == run.completed * STEPS
    user_s = after.ru_utime - before.ru_utime
    return {
        "trials": run.completed,
        "attempts": run.attempts,
        "given_up": run.failed,
        "checkpoints": run.checkpoints,
        "simulated_days": run.wall_s / 86400,
        "user_s": user_s,
        "system_s": after.ru_stime - before.ru_stime,
        "wall_s": time.perf_counter() - began,
        "user_us_per_trial": user_s / run.completed * 1e6,
        "peak_mib": after.ru_maxrss / 1024,
        "shares": {name: seconds / sum(run.seconds.values()) for name, seconds in run.seconds.items()},
    }


def train(trial: phyla.Trial) -> None:
    """Sleep as long as a draw of the distribution that is simulated says."""
    draw = np.random.default_rng(trial.seed).standard_normal()
    time.sleep(SLEEP_S * float(np.exp(SPREAD * draw - SPREAD**2 / 2)))
    (trial.checkpoint_dir / "id.txt").write_text(str(trial.id))
    trial.report(Q=trial.params["rate"])


def agreement(*, quorum: float) -> dict[str, Any]:
    """Run a study of sleeping trials, and compare with what was predicted of it."""
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        strategy = phyla.PBT(
            population_size=MEMBERS, steps_per_trial=STEPS, total_steps=STEPS * TRIALS, quorum=quorum
        )
        study = phyla.Study("sleeps", SPACE, OBJECTIVE, strategy, train, home=folder)
        predicted = simulate(study, 2, trial_s=SLEEP_S, spread=SPREAD, runs=20)
        attempts = study.run(workers=2).attempts()
        ended = [attempt.ended_at for attempt in attempts if attempt.ended_at is not None]
        real_s = max(ended) - min(attempt.claimed_at for attempt in attempts)
    return {
        "quorum": quorum,
        "real_s": real_s,
        "predicted_s": predicted.wall_s,
        "range_s": list(predicted.wall_range_s),
        "difference": real_s / predicted.wall_s - 1,
    }


def main() -> None:
    """Print the tables and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--population", type=int, default=100)
    parser.add_argument("--trials", type=int, default=1000, help="of each member")
    parser.add_argument("--workers", type=int, default=64)
    parser.add_argument("--out", type=Path, default=Path("bench/results/simulate.json"))
    options = parser.parse_args()
    compared = [agreement(quorum=quorum) for quorum in (0.8, 1.0)]
    print(f"{'study of sleeping trials, 2 workers':<42}{'real':>8}{'predicted':>11}{'wanted':>9}")
    for one in compared:
        name = f"quorum {one['quorum']}"
        print(f"{name:<42}{one['real_s']:>7.2f}s{one['predicted_s']:>10.2f}s{DIFFERENCE:>9.0%}")
    found = stress(options.population, options.trials, options.workers)
    print()
    print(f"{'stress':<42}{'measured':>14}{'wanted':>9}")
    print(f"{'trials completed':<42}{found['trials']:>14,}")
    print(f"{'attempts, trials given up':<42}{found['attempts']:>8,}{found['given_up']:>6}")
    print(f"{'user CPU per trial, all in':<42}{found['user_us_per_trial']:>11.1f} us")
    print(f"{'user CPU, wall':<42}{found['user_s']:>7.1f}{found['wall_s']:>7.0f} s{CPU_S:>8.0f}s")
    print(f"{'peak memory':<42}{found['peak_mib']:>10.0f} MiB{MEMORY_MIB:>9}")
    print(f"{'simulated time':<42}{found['simulated_days']:>9.1f} days")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({"machine": facts(), "stress": found, "agreement": compared}, indent=2))


if __name__ == "__main__":
    main()
