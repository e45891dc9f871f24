"""What early stopping is worth, for the same steps: `python bench/quality/early_stopping.py`, some minutes.

Whole runs of random search on the digits and on the ring, with and without rules, and beside them successive
halving; and population based training on the digits. A study with a rule completes its budget and trains what it
stopped on top. So all are looked at after the same number of steps really trained, those of stopped trials up to
the report that stopped them included, as if every report were seen at once. Nothing is tuned. Reported are the
seeds from 0 on.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from comparing import RESULTS, Budget, Cell, Outcome, module_of, run_cells
from contenders import asha, pbt
from summaries import table, write

import phyla
from phyla.strategies import StoppingRule, Strategy

WORSE_THAN_CHANCE = 2.5
"""Ten classes, all as likely: 2.3 nats."""
MEDIAN, LATE = "median stopping", "median stopping, from half"
CHANCE = f"stopped above {WORSE_THAN_CHANCE} nats"


@dataclass(frozen=True, kw_only=True)
class Scene:
    """A problem, and what is compared on it.

    Attributes:
        problem: name of its module.
        caption: of its table.
        strategies: with the rules that go with each, by label; the first is the baseline.
        budget: what all have.
        seeds: how many.
    """

    problem: str
    caption: str
    strategies: Mapping[str, tuple[Strategy, Sequence[StoppingRule]]]
    budget: Budget
    seeds: int


def scenes(*, quick: bool, seeds: int) -> dict[str, Scene]:
    """Return what is compared, by name."""
    digits, ring = module_of("digits_reports"), module_of("ring_reports")
    whole: Budget = digits.QUICK if quick else digits.BUDGET
    coupled: Budget = ring.QUICK if quick else ring.BUDGET
    trained: Budget = replace(whole, members=4 if quick else 12, steps_per_trial=20 if quick else 50)
    chance = phyla.strategies.Divergence(above=WORSE_THAN_CHANCE)
    evolved, within = pbt(trained), trained.steps_per_trial * 2 // 5

    def searched(budget: Budget) -> dict[str, tuple[Strategy, Sequence[StoppingRule]]]:
        # Random search that draws anew in place of what is stopped: each member is one trial, so it never evolves.
        steps, size = budget.total_steps, budget.members
        search = phyla.PBT(
            population_size=size, steps_per_trial=steps, total_steps=steps, exploit=None, explore=None, quorum=0.0
        )
        first, half = budget.total_steps // 10, budget.total_steps // 2
        rungs = replace(budget, steps_per_trial=max(5, budget.total_steps // 20))
        return {
            "random search": (search, ()),
            MEDIAN: (search, [phyla.MedianStopping(min_steps=first)]),
            LATE: (search, [phyla.MedianStopping(min_steps=half, every_steps=first)]),
            "ASHA": (asha(rungs, 3), ()),
        }

    on_digits = searched(whole)
    on_digits[CHANCE] = (on_digits["random search"][0], [chance])
    return {
        "digits": Scene(
            problem="digits_reports",
            caption=f"Digits, whole runs of {whole.total_steps} steps",
            strategies=on_digits,
            budget=whole,
            seeds=seeds,
        ),
        "ring": Scene(
            problem="ring_reports",
            caption=f"Ring of Gaussians, whole runs of {coupled.total_steps} steps",
            strategies=searched(coupled),
            budget=coupled,
            seeds=seeds,
        ),
        "pbt": Scene(
            problem="digits_reports",
            caption=f"Digits, PBT of {trained.members} members, {trained.steps_per_trial} steps a trial",
            strategies={
                "PBT": (evolved, ()),
                f"PBT, {MEDIAN}": (evolved, [phyla.MedianStopping(min_steps=within, every_steps=10)]),
                f"PBT, {CHANCE}": (evolved, [chance]),
            },
            budget=trained,
            seeds=seeds,
        ),
    }


def until(outcome: Outcome, steps: int) -> Outcome:
    """Return a study as it was after so many steps: its best by fitness, and what was stopped by then."""
    ended = [one for one in outcome["details"]["ended"] if one[0] <= steps and np.isfinite(one[1])]
    stopped = [one for one in outcome["details"]["stopped"] if one[0] <= steps]
    best = min(ended, key=lambda one: float(one[1]))
    curve = [point for point in outcome["curve"] if point[0] <= steps]
    counted = {"ended": len(ended), "stopped": len(stopped), "own": sum(one[1] for one in stopped)}
    counted["spared"] = sum(one[2] for one in stopped)
    final = {**outcome["final"], "report": best[2]}
    return {**outcome, "final": final, "age": best[3], "curve": curve, "counted": counted}


def counted(outcomes: Sequence[Outcome]) -> str:
    """Return, as a table in Markdown, how many trials completed and were stopped: medians over seeds."""
    heads = ("", "completed", "stopped", "steps these trained", "steps spared", "in all")
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for label in dict.fromkeys(one["label"] for one in outcomes):
        mine = [one for one in outcomes if one["label"] == label]
        names = ("ended", "stopped", "own", "spared")
        medians = [f"{np.median([one['counted'][name] for one in mine]):.0f}" for name in names]
        whole = f"{np.median([one['spent'] for one in mine]):.0f}"
        lines.append("| " + " | ".join([label, *medians, whole]) + " |")
    return "\n".join(lines)


def main() -> None:
    """Run what is missing, and write the summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two seeds of tiny studies, to see that it runs")
    parser.add_argument("--seeds", type=int, default=8, help="how many are reported")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=None, help="where results are kept")
    options = parser.parse_args()
    folder = options.folder or (RESULTS.with_name("quality-quick") if options.quick else RESULTS)
    found: list[dict[str, Any]] = []
    parts: list[str] = []
    places: dict[str, int] = {}
    for name, scene in scenes(quick=options.quick, seeds=2 if options.quick else options.seeds).items():
        outcomes = run_cells(
            [
                Cell(problem=scene.problem, label=label, strategy=strategy, seed=seed, stopping=rules)
                for seed in range(scene.seeds)
                for label, (strategy, rules) in scene.strategies.items()
            ],
            processes=options.processes,
            folder=folder,
        )
        steps = scene.budget.all_steps
        outcomes = [until(one, steps) for one in outcomes]
        places[name] = len(found)
        report = module_of(scene.problem).REPORT
        caption = f"{scene.caption}, after {steps} steps: {report}; lower is better."
        found.append(table(caption, outcomes, next(iter(scene.strategies)), maximize=False))
        parts.append(f"{scene.caption}, medians over seeds:\n\n{counted(outcomes)}")
    text = (
        "Compared after the same number of trained steps, stopped trials included. A rule replaces what it stops, "
        "so the study trains more steps *in all*. Nothing tuned."
    )
    write("stopping", "Early stopping", "\n\n".join([text, *parts]), found, folder=folder, places=places)


if __name__ == "__main__":
    main()
