"""Two goals at odds and a limit: what finds the front? `python bench/quality/several_metrics.py`, half a minute.

The front is known, so what was missed can be measured: the area that points on the true front dominate, below 1 in
both goals, and that no trial of the study does. Nothing is tuned. Reported are the seeds from 0 on.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from comparing import RESULTS, Budget, Cell, Outcome, run_cells
from contenders import pbt
from summaries import table, write
from tradeoff_problem import BUDGET, FARTHEST, QUICK, SUMMED, TITLE

import phyla

BASELINE = "PBT, Pareto truncation"
SUM, RANDOM = "PBT, weighted sum", "random search"
FAR = FARTHEST**2
"""The limit, in units of f1."""

Points = Sequence[Sequence[float]]
"""f1, f2, and 1 where the limit holds."""


def cells(budget: Budget, seeds: Sequence[int]) -> list[Cell]:
    """Return the studies."""
    truncation = pbt(budget, exploit=phyla.strategies.ParetoTruncation())
    strategies: dict[str, Any] = {
        BASELINE: truncation,
        "PBT, Pareto tournament": replace(truncation, exploit=phyla.strategies.ParetoTournament()),
        "PBT, Pareto tournament, not crowded": replace(
            truncation, exploit=phyla.strategies.ParetoTournament(crowded=False)
        ),
        SUM: pbt(budget),
        RANDOM: phyla.RandomSearch(budget.members, budget.total_steps, budget.steps_per_trial),
    }
    return [
        Cell(
            problem="tradeoff",
            label=label,
            strategy=strategy,
            seed=seed,
            objective=SUMMED if label == SUM else None,
        )
        for seed in seeds
        for label, strategy in strategies.items()
    ]


def front(points: Points) -> list[tuple[float, float]]:
    """Return f1 and f2 of the points within the limit that no other dominates, f1 ascending."""
    found: list[tuple[float, float]] = []
    for f1, f2, within in sorted(map(tuple, points)):
        if within and (not found or f2 < found[-1][1]):
            found.append((f1, f2))
    return found


def area(points: Points) -> float:
    """Return the area that points within the limit dominate, for f1 up to the limit and f2 up to 1."""
    corners = [(f1, f2) for f1, f2 in front(points) if f2 < 1.0]
    edges = pairwise([*corners, (FAR, 0.0)])
    return sum((until - f1) * (1.0 - f2) for (f1, f2), (until, _) in edges)


def missed(points: Points) -> float:
    """Return the share of the true front's area that is not dominated, in percent."""
    # The integral of 1 - (1 - sqrt(f1))^2 up to the limit.
    whole = 4 / 3 * FARTHEST**3 - FARTHEST**4 / 2
    return 100 * (1 - area(points) / whole)


def judged(outcomes: Sequence[Outcome]) -> dict[str, list[Outcome]]:
    """Return the outcomes with what was missed, and with the best sum of both goals, as what is reported."""

    def with_report(outcome: Outcome, value: float) -> Outcome:
        return {**outcome, "final": {**outcome["final"], "report": value}}

    def best_sum(points: Points) -> float:
        return min(f1 + f2 for f1, f2, within in points if within)

    return {
        "missed": [with_report(one, missed(one["details"])) for one in outcomes],
        "sum": [with_report(one, best_sum(one["details"])) for one in outcomes],
    }


def main() -> None:
    """Run what is missing, and write the summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two seeds of tiny studies, to see that it runs")
    parser.add_argument("--seeds", type=int, default=20, help="how many are reported")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=None, help="where results are kept")
    options = parser.parse_args()
    folder = options.folder or (RESULTS.with_name("quality-quick") if options.quick else RESULTS)
    budget = QUICK if options.quick else BUDGET
    seeds = range(2 if options.quick else options.seeds)
    outcomes = run_cells(cells(budget, seeds), processes=options.processes, folder=folder)
    found = judged(outcomes)
    text = (
        f"{budget.members} members, {budget.total_steps} steps each, {budget.steps_per_trial} a trial; nothing "
        f"tuned; {len(seeds)} seeds. A point descends a weighted sum of f1 and f2, its squared distances from "
        f"(0, 0) and (1, 0), with noise, and must end within {FARTHEST} of (0, 0)."
    )
    tables = [
        table(
            "Share of the area below the true front that the study missed, %; lower is better.",
            found["missed"],
            BASELINE,
            maximize=False,
        ),
        table(
            "Least f1 + f2 within the limit, at least 0.5; lower is better.",
            found["sum"],
            BASELINE,
            maximize=False,
        ),
    ]
    scattered = {one["label"]: one["details"] for one in outcomes if one["seed"] == 0}
    write("tradeoff", TITLE, text, tables, folder=folder, scattered=scattered)


if __name__ == "__main__":
    main()
