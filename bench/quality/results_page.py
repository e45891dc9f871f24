"""Write docs/results.md from what comparisons found: `python bench/quality/results_page.py`."""

import argparse
from pathlib import Path
from typing import Any

from comparing import RESULTS
from summaries import read
from tables import markdown, reading

DOCS = Path(__file__).resolve().parents[2] / "docs" / "results.md"
FIGURES = {
    "digits": ["digits.svg"],
    "cartpole": ["cartpole.svg"],
    "ring": ["ring.svg"],
    "ablations": ["interval.svg"],
    "replay": ["schedules.svg"],
    "tradeoff": ["front.svg"],
    "stopping": ["stopping-digits.svg"],
}
HEAD = """# What the strategies do

Made by `python bench/quality/everything.py`, which runs the studies (`compare.py`, `ablations.py`,
`several_metrics.py`, `early_stopping.py`) and then writes this page (`results_page.py`) and the figures
(`figures.py`). Nothing here is typed in by hand.

Every study runs through `phyla.Study`. In one table all strategies have the same number of training steps and
the same seeds: of the problem (data, environments) and of the study, so members begin with the same
hyperparameters. Selection sees the validation fitness alone; what is compared is the best checkpoint by that, on
data or episodes that neither selection nor tuning has seen. *won : lost* and *p* are against the first row, seed
by seed: Wilcoxon's signed-rank test, two-sided, adjusted by Holm for the rows of the table. *age* is for how
many steps the best weights were trained, median.

Populations wait for each other after every trial, as they would with one worker for each member. A population
with few workers that does not wait is a row of its own: there a member may copy another's weights that are a
trial ahead of its own and go on from there, so the best weights get older than any member's share of the steps.
That is the same work in all. `single worker explores` spends all steps in one member: its weights too get older,
and it cannot use more workers.

The values of a grid are chosen by hand. They carry knowledge of what is usual that the priors, which all others
draw from, do not: on CartPole the prior of the learning rate spans four decades, the grid the upper half of them.
"""


def page(folder: Path) -> str:
    """Return the page."""
    parts = [HEAD]
    found = read(folder)
    for name, summary in found.items():
        parts += [f"## {summary['title']}", summary["text"]]
        parts += [f"![{summary['title']}](figures/{figure})" for figure in FIGURES[name]]
        for table in summary["tables"]:
            parts += [table["caption"], markdown(table["rows"], notes=table["notes"])]
            parts.append(reading(table["rows"], table["baseline"]))
    if found:
        parts += ["## The machine", _machine(next(iter(found.values()))["machine"])]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _machine(facts: dict[str, Any]) -> str:
    return (
        f"{facts['cpu_count']} cores ({facts['cpu']}), {facts['kernel']}, {facts['python']}. Results do not "
        "depend on its speed: training and decisions are seeded, and every study has one worker."
    )


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=RESULTS, help="where results are kept")
    parser.add_argument("--out", type=Path, default=DOCS, help="the page")
    options = parser.parse_args()
    options.out.write_text(page(options.folder))
    print(f"wrote {options.out}")


if __name__ == "__main__":
    main()
