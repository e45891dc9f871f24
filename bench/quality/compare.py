"""Compare strategies on one problem or several: `python bench/quality/compare.py digits cartpole ring`.

Every strategy has the same number of training steps. On the digits each one's knobs are tuned on seeds that are
not reported: the option with the best median over the seeds 100 to 103, by validation, of equals the earlier.
On the other problems nothing is tuned: every strategy runs with its defaults. Reported are the seeds from 0 on.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from comparing import RESULTS, Budget, Cell, Outcome, module_of, run_cells
from contenders import BASELINE, CONTENDERS, TUNING_SEEDS, Contender, tuned
from summaries import table, write

SEEDS = {"digits": 12, "cartpole": 10, "ring": 8, "fig2": 50}
TUNED = ("digits",)


def choose(
    problem: str, budget: Budget, contenders: Sequence[Contender], seeds: Sequence[int], **options: Any
) -> dict[str, str]:
    """Tune the knobs, and return the chosen option by label."""
    module = module_of(problem)
    cells = {
        contender.label: [
            Cell(problem=problem, label=name, strategy=make(budget), seed=seed)
            for name, make in contender.options.items()
            for seed in seeds
        ]
        for contender in contenders
        if len(contender.options) > 1
    }
    outcomes = iter(run_cells([cell for each in cells.values() for cell in each], **options))
    found: dict[str, list[Outcome]] = {label: [next(outcomes) for _ in each] for label, each in cells.items()}
    return {
        contender.label: tuned(contender, found[contender.label], maximize=module.MAXIMIZE)
        if contender.label in found
        else next(iter(contender.options))
        for contender in contenders
    }


def compare(
    problem: str,
    *,
    quick: bool = False,
    seeds: int | None = None,
    processes: int = 2,
    folder: Path = RESULTS,
) -> None:
    """Run what is missing of a comparison, and write its summary."""
    module = module_of(problem)
    budget: Budget = module.QUICK if quick else module.BUDGET
    contenders = CONTENDERS
    chosen = {contender.label: next(iter(contender.options)) for contender in contenders}
    if problem in TUNED:
        tuning = TUNING_SEEDS[:1] if quick else TUNING_SEEDS
        tunable = contenders[:2] if quick else contenders
        chosen |= choose(problem, budget, tunable, tuning, processes=processes, folder=folder)
    reported = range(seeds or (2 if quick else SEEDS[problem]))
    strategies = {contender.label: contender.options[chosen[contender.label]](budget) for contender in contenders}
    outcomes = run_cells(
        [
            Cell(problem=problem, label=label, strategy=strategy, seed=seed)
            for seed in reported
            for label, strategy in strategies.items()
        ],
        processes=processes,
        folder=folder,
    )
    knobs = "tuned on four other seeds" if problem in TUNED else "nothing tuned"
    text = (
        f"{budget.members} members, {budget.total_steps} steps each, {budget.steps_per_trial} a trial; "
        f"{knobs}; {len(reported)} seeds."
    )
    better = "higher" if module.MAXIMIZE else "lower"
    final = table(
        f"{module.REPORT[0].upper()}{module.REPORT[1:]}; {better} is better.",
        outcomes,
        BASELINE,
        maximize=module.MAXIMIZE,
        notes=chosen if problem in TUNED else None,
    )
    schedules = [one["schedule"] for one in outcomes if one["label"] == BASELINE]
    write(problem, module.TITLE, text, [final], folder=folder, schedules=schedules)


def main() -> None:
    """Run the comparisons that are named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "problems", nargs="*", default=["digits", "cartpole", "ring"], help="digits, cartpole, ring"
    )
    parser.add_argument("--quick", action="store_true", help="two seeds of tiny studies, to see that it runs")
    parser.add_argument("--seeds", type=int, default=None, help="how many are reported")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=None, help="where results are kept")
    options = parser.parse_args()
    folder = options.folder or (RESULTS.with_name("quality-quick") if options.quick else RESULTS)
    for problem in options.problems:
        compare(problem, quick=options.quick, seeds=options.seeds, processes=options.processes, folder=folder)


if __name__ == "__main__":
    main()
