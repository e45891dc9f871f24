"""A small version of bench/quality/from_suite.py: fitness from a suite beats the last batch's loss."""

from pathlib import Path

import numpy as np
from from_suite import BASELINE, TUNING_SEED, VARIANTS, run

from effort import times

SUITE = "suite, same examples, remeasure=1"
SEEDS = range(TUNING_SEED, TUNING_SEED + times(1, 3))


def test_a_suite_selects_better_than_the_loss_of_the_last_batch(tmp_path: Path) -> None:
    variants = {variant.name: variant for variant in VARIANTS}
    outcomes = {
        name: [run(variants[name], seed, tmp_path / f"{index}-{seed}", members=4, trials=12) for seed in SEEDS]
        for index, name in enumerate((BASELINE, SUITE))
    }
    steps = {outcome.steps for each in outcomes.values() for outcome in each}
    assert len(steps) == 1, "the same number of training steps"
    last, suite = (np.mean([outcome.members for outcome in each]) for each in outcomes.values())
    assert suite < last - 0.1, "log10 of the exact excess risk, mean over members and seeds"
