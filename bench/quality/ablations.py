"""What each part of population based training contributes: `python bench/quality/ablations.py`.

On the digits and on the toy of figure 2: weights alone, hyperparameters alone, no exploring, no copying;
populations of several sizes; ready intervals. And on the digits, whether the schedule that a population found
is worth anything by itself: trained again by one member with fresh seeds, against the schedule's last values
held fixed. Nothing is tuned here: rules are those of the paper. Reported are the seeds from 0 on.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from comparing import RESULTS, Budget, Cell, Outcome, module_of, run_cells
from contenders import pbt
from summaries import table, write

import phyla
from phyla.lineage import Schedule
from phyla.strategies import Strategy

SIZES, INTERVALS = (4, 8, 16, 32), (10, 25, 50, 100, 200, 500)
REPLAYS = 3
AS_FOUND, HELD, FIRST = (
    "the schedule, trained again",
    "its last values, held fixed",
    "its first values, held fixed",
)


def parts(budget: Budget, explore: Any, exploit: Any) -> dict[str, Strategy]:
    """Return PBT with parts taken away."""
    full = pbt(budget, explore=explore, exploit=exploit)
    return {
        "weights and hyperparameters": full,
        "weights alone are copied": replace(full, copy="weights"),
        "hyperparameters alone are copied": replace(full, copy="hyperparameters"),
        "nothing is explored": replace(full, explore=None),
        "nothing is copied": replace(full, exploit=None),
        "neither: random search": replace(full, exploit=None, explore=None),
    }


def populations(budget: Budget, *, same_total: bool) -> dict[str, Strategy]:
    """Return PBT with populations of several sizes, for the same steps a member or the same in all."""
    found: dict[str, Strategy] = {}
    for size in (budget.members, *SIZES):
        steps = max(budget.steps_per_trial, budget.all_steps // size) if same_total else budget.total_steps
        label = f"{size} members, {steps} steps each"
        found[label] = pbt(replace(budget, members=size, total_steps=steps))
    return found


def intervals(budget: Budget) -> dict[str, Strategy]:
    """Return PBT with several ready intervals."""
    chosen = [every for every in INTERVALS if every != budget.steps_per_trial and every <= budget.total_steps]
    return {
        f"every {every} steps": pbt(replace(budget, steps_per_trial=every))
        for every in (budget.steps_per_trial, *chosen)
    }


def run(problem: str, strategies: Mapping[str, Strategy], seeds: Sequence[int], **options: Any) -> list[Outcome]:
    """Run strategies on all seeds."""
    cells = [
        Cell(problem=problem, label=label, strategy=strategy, seed=seed)
        for seed in seeds
        for label, strategy in strategies.items()
    ]
    return run_cells(cells, **options)


def replays(found: Sequence[Outcome], budget: Budget, **options: Any) -> list[Outcome]:
    """Train what populations found again: the schedule, its last and its first values, each with fresh seeds.

    The problem's seed, and so its data, is that of the population. The mean over the replays counts as one.
    """
    cells = []
    for outcome in found:
        segments = Schedule.from_json(outcome["schedule"]).segments
        steps = segments[-1].end_step
        ways = {
            AS_FOUND: [(segment.start_step, segment.params) for segment in segments],
            HELD: [(0, segments[-1].params)],
            FIRST: [(0, segments[0].params)],
        }
        for label, schedule in ways.items():
            strategy = phyla.strategies.FixedSchedule(schedule, steps, steps_per_trial=budget.steps_per_trial)
            cells += [
                Cell(
                    problem=outcome["problem"],
                    label=label,
                    strategy=strategy,
                    seed=outcome["seed"],
                    study_seed=10_000 + 100 * outcome["seed"] + replay,
                )
                for replay in range(REPLAYS)
            ]
    each = run_cells(cells, **options)
    means = []
    for at in range(0, len(each), REPLAYS):
        several = each[at : at + REPLAYS]
        report = sum(one["final"]["report"] for one in several) / REPLAYS
        means.append({**several[0], "final": {**several[0]["final"], "report": report}})
    return means


def main() -> None:
    """Run what is missing, and write the summaries."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two seeds of tiny studies, to see that it runs")
    parser.add_argument("--seeds", type=int, default=12, help="how many are reported on the digits")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=None, help="where results are kept")
    options = parser.parse_args()
    folder = options.folder or (RESULTS.with_name("quality-quick") if options.quick else RESULTS)
    how: dict[str, Any] = {"processes": options.processes, "folder": folder}

    digits, fig2 = module_of("digits"), module_of("fig2")
    budget: Budget = digits.QUICK if options.quick else digits.BUDGET
    few, many = (range(2), range(2)) if options.quick else (range(options.seeds), range(50))
    found = []

    toy = parts(fig2.BUDGET, phyla.Perturb(resample=0.5), phyla.Truncation(0.5))
    outcomes = run("fig2", toy, many, **how)
    found.append(
        table("The toy of figure 2: Q, at most 1.2; higher is better.", outcomes, next(iter(toy)), maximize=True)
    )
    sweeps = {
        "parts": ("Digits, parts taken away", parts(budget, phyla.Perturb(), phyla.Truncation())),
        "size": ("Digits, size of the population, same steps a member", populations(budget, same_total=False)),
        "total": ("Digits, size of the population, same steps in all", populations(budget, same_total=True)),
        "interval": ("Digits, ready interval", intervals(budget)),
    }
    places = {"fig2": 0}
    for name, (caption, strategies) in sweeps.items():
        outcomes = run("digits", strategies, few, **how)
        places[name] = len(found)
        found.append(table(f"{caption}:", outcomes, next(iter(strategies)), maximize=False))
    text = (
        f"On the digits: {budget.members} members, {budget.total_steps} steps each, {budget.steps_per_trial} a "
        f"trial, unless the row differs; {digits.REPORT}; lower is better."
    )
    write("ablations", "What each part contributes", text, found, folder=folder, places=places)

    plain = run("digits", {"PBT": pbt(budget)}, few, **how)
    outcomes = replays(plain, budget, **how)
    text = (
        "One member trains the best schedule of each population again with fresh random numbers, against "
        f"constant values. Means of {REPLAYS} replays for each seed."
    )
    again = table(f"Digits: {digits.REPORT}; lower is better.", outcomes, AS_FOUND, maximize=False)
    schedules = [[one["seed"], one["schedule"]] for one in plain]
    write("replay", "Is the schedule worth anything by itself?", text, [again], folder=folder, schedules=schedules)


if __name__ == "__main__":
    main()
