"""Write docs/results.md from what comparisons found: `python bench/quality/results_page.py`."""

import argparse
from pathlib import Path

from comparing import RESULTS
from summaries import read
from tables import markdown

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
HEAD = """# What the strategies came to

*Read this to see what each strategy is worth, on four problems.*

`python bench/quality/everything.py` runs these studies and writes this page.

All strategies in a table have the same number of training steps and the same seeds. Selection sees the
validation score; what is compared is the checkpoint that is best by it, on data that neither selection nor
tuning has seen. *won : lost* and *p* are against the first row, seed by seed (Wilcoxon's signed-rank test, two-
sided, adjusted by Holm); a row with p below 0.05 differs. *seeds* is how many it would take to show the difference
with 80 % power, if the next seeds were like these. *age* is how many steps the best weights were trained, *steps*
how many all members trained, medians.

`single worker explores` puts all steps into one member, so its weights get older. Grids were chosen by hand and
know what is usual.
"""


def page(folder: Path) -> str:
    """Return the page."""
    parts = [HEAD]
    for name, summary in read(folder).items():
        parts += [f"## {summary['title']}", summary["text"]]
        parts += [f"![{summary['title']}](figures/{figure})" for figure in FIGURES[name]]
        for table in summary["tables"]:
            parts += [table["caption"], markdown(table["rows"], notes=table["notes"])]
    return "\n\n".join(part.strip() for part in parts) + "\n"


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
