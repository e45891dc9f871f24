"""A population of meta-trainers whose fitness is a suite of inner problems.

Run it with `python examples/learned_optimizer/study.py --workers 2`.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# The example is a package, also where this file is run by itself or read by a worker.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import gin
import numpy as np

import phyla
from learned_optimizer.inner import Problem
from learned_optimizer.optimizer import baseline, log_ratio, unroll
from learned_optimizer.suite import IN, OUT, load, log_speedup, make_suite, setting
from learned_optimizer.train import SPACE, train

REPORT_SEEDS = range(20_000_000, 20_000_064)
"""Neither selection nor tuning sees these."""


def make_study(
    *,
    members: int = 6,
    steps: int = 400,
    steps_per_trial: int = 20,
    seeds: int = 16,
    shards: int = 1,
    name: str = "learned-optimizer",
    **options: Any,
) -> phyla.Study:
    """Return the study.

    Args:
        members: size of the population.
        steps: outer updates that each member spends.
        steps_per_trial: outer updates between two decisions.
        seeds: instances of each inner problem in the suite.
        shards: into how many parts each eval task may be split.
        name: of the study.
        **options: further ones of `phyla.Study`.
    """
    return phyla.Study(
        name=name,
        space=SPACE,
        objective=phyla.Minimize("in/vs_adam_mean"),
        strategy=phyla.PBT(
            population_size=members,
            steps_per_trial=min(steps_per_trial, steps),
            total_steps=steps,
            exploit=phyla.Truncation(0.25),
            explore=phyla.Perturb(factors=(0.7, 1.4), resample=0.1),
            fitness=phyla.FromSuite("meta", "in/vs_adam_mean", max_lag=2, remeasure=1),
        ),
        train=train,
        suites=[make_suite(seeds=seeds, shards=shards)],
        **options,
    )


def problems() -> dict[str, Problem]:
    """Return the inner problems of the suite by name, as `config.gin` has them."""
    made: dict[str, Problem] = {}
    for name, kind in {**IN, **OUT}.items():
        gin.clear_config()
        gin.parse_config_files_and_bindings(
            [str(Path(__file__).with_name("config.gin"))], [f"setting.problem = @{name}/{kind}()"]
        )
        made[name] = setting()
    gin.clear_config()
    return made


def report(results: phyla.Results, seeds: Sequence[int] = REPORT_SEEDS) -> None:
    """Print how the best meta-parameters do on seeds that nothing has seen, against tuned Adam and tuned SGD."""
    best = results.best
    if best is None:
        print("no trial has a fitness yet")
        return
    learned = load(best.checkpoint)
    print(
        f"\nBest: member {best.member}, trial {best.trial}, {best.checkpoint.step} outer updates, "
        f"{best.params.flat()}"
    )
    print(f"in/vs_adam_mean by which it was selected: {best.fitness:+.3f}")
    print(f"\nOn {len(seeds)} fresh seeds: log of final loss over that of tuned Adam (below 0 is better)\n")
    print(f"{'':<18}{'learned':>18}{'tuned SGD':>18}{'speed-up over Adam':>22}")
    each: dict[str, list[tuple[float, float, float]]] = {"in": [], "out": []}
    for name, problem in problems().items():
        adam = baseline("adam", problem, tuple(seeds))
        curves = unroll(learned, problem, seeds)
        ours, sgd = log_ratio(curves, adam), log_ratio(baseline("sgd", problem, tuple(seeds)), adam)
        faster = log_speedup(curves, adam)
        tag = "in" if name in IN else "out"
        each[tag].append((float(ours.mean()), float(sgd.mean()), float(faster.mean())))
        print(f"{f'{tag}/{name}':<18}{_plus_minus(ours):>18}{_plus_minus(sgd):>18}{np.exp(faster.mean()):>21.2f}x")
    for tag, rows in each.items():
        ours_mean, sgd_mean, faster_mean = np.mean(rows, axis=0)
        print(
            f"{f'{tag}, mean':<18}{ours_mean:>+11.3f}{'':7}{sgd_mean:>+11.3f}{'':7}{np.exp(faster_mean):>21.2f}x"
        )


def _plus_minus(values: Any) -> str:
    return f"{values.mean():+.3f} ± {values.std(ddof=1) / len(values) ** 0.5:.3f}"


def main() -> None:
    """Run the study and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=0, help="worker processes; 0 runs in this process")
    parser.add_argument("--members", type=int, default=6)
    parser.add_argument("--steps", type=int, default=400, help="outer updates of each member")
    parser.add_argument("--seeds", type=int, default=16, help="instances of each inner problem in the suite")
    parser.add_argument("--seed", type=int, default=0, help="of the study")
    parser.add_argument("--home", type=Path, default=None, help="where everything is kept; by default .phyla")
    options = parser.parse_args()
    study = make_study(
        members=options.members,
        steps=options.steps,
        seeds=options.seeds,
        seed=options.seed,
        home=options.home,
    )
    report(study.run(workers=options.workers))


if __name__ == "__main__":
    main()
