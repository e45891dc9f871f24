"""One study on the digits, trained again in every way: `python bench/quality/train_again.py`, half a minute.

A population of seed 0, then its winner: replayed, trained on, its schedule with fresh seeds, and constants with
the same seeds. One study is an example; for twelve, compared by test scores, see `ablations.py`.
"""

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from comparing import RESULTS, Budget, memory, module_of
from contenders import pbt

import phyla
from phyla.records import TrialRecord

NAME = "again"
FOUND, REPLAYED, ON = "the winner's path", "replayed", "trained on"
SCHEDULE, LAST, FIRST = "its schedule, fresh seeds", "its last values, held fixed", "its first values, held fixed"


def path(trials: Sequence[TrialRecord]) -> dict[str, list[float]]:
    """Return the fitness of trials by the age of their weights."""
    return {
        "x": [float(trial.reached_step or 0) for trial in trials],
        "y": [float(trial.fitness or np.nan) for trial in trials],
    }


def spread(trials: Sequence[TrialRecord]) -> dict[str, list[float]]:
    """Return the same of several members: median and quartiles at each age."""
    by_age: dict[int, list[float]] = {}
    for trial in trials:
        by_age.setdefault(trial.reached_step or 0, []).append(float(trial.fitness or np.nan))
    ages = sorted(by_age)
    low, middle, high = np.array([np.percentile(by_age[age], [25, 50, 75]) for age in ages]).T
    return {"x": list(map(float, ages)), "y": middle.tolist(), "low": low.tolist(), "high": high.tolist()}


def trained(budget: Budget, home: Path, *, more: int, members: int) -> dict[str, Any]:
    """Run the study, and train its winner again; returns curves by label, and whether the replay is the same.

    Args:
        budget: of the population.
        home: where the studies live.
        more: steps that are trained on.
        members: fresh seeds of each schedule.
    """
    problem = module_of("digits").problem(0)
    study = phyla.Study(NAME, problem.space, problem.objective, pbt(budget), problem.train, home=home)
    results = study.run()
    best = results.best
    assert best is not None
    replayed = phyla.replay(NAME, train=problem.train, home=home)
    on = phyla.continue_training(NAME, more, train=problem.train, home=home)
    digests = {row.name: row.digest for row in replayed.checkpoints()}
    head = replayed.members()[0].head
    assert head is not None
    best_trial = next(trial for trial in results.trials() if trial.id == best.trial)
    segments = results.schedule().segments
    steps = segments[-1].end_step
    curves = {
        FOUND: path(results.lineage().ancestry(best.trial)),
        REPLAYED: path(replayed.trials()),
        ON: path([best_trial, *(trial for trial in on.trials() if trial.fitness is not None)]),
    }
    for label, schedule in {
        SCHEDULE: [(segment.start_step, dict(segment.params)) for segment in segments],
        LAST: [(0, dict(segments[-1].params))],
        FIRST: [(0, dict(segments[0].params))],
    }.items():
        strategy = phyla.strategies.FixedSchedule(
            schedule, steps, members=members, steps_per_trial=budget.steps_per_trial
        )
        again = phyla.Study(
            label.replace(" ", "-").replace(",", "").replace("'", ""),
            problem.space,
            problem.objective,
            strategy,
            problem.train,
            seed=10_000,
            home=home,
        )
        curves[label] = spread(again.run().trials())
    return {"curves": curves, "same": digests[head.checkpoint] == best.checkpoint.digest}


def main() -> None:
    """Run it, and write what came out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tiny study, to see that it runs")
    parser.add_argument("--folder", type=Path, default=None, help="where results are kept")
    options = parser.parse_args()
    folder = options.folder or (RESULTS.with_name("quality-quick") if options.quick else RESULTS)
    folder.mkdir(parents=True, exist_ok=True)
    digits = module_of("digits")
    with tempfile.TemporaryDirectory(dir=memory()) as home:
        if options.quick:
            found = trained(digits.QUICK, Path(home), more=20, members=2)
        else:
            found = trained(digits.BUDGET, Path(home), more=500, members=12)
    (folder / f"{NAME}.json").write_text(json.dumps(found, indent=1))
    print(f"wrote {folder / f'{NAME}.json'}; the replay is the same, bit for bit: {found['same']}")


if __name__ == "__main__":
    main()
