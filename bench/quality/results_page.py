"""Write docs/results.md from what comparisons found: `python bench/quality/results_page.py`."""

import argparse
from pathlib import Path

import published_page
import schedules_page
import settings_page
import wall_time_page
from comparing import RESULTS
from summaries import read
from tables import markdown

DOCS = Path(__file__).resolve().parents[2] / "docs" / "results.md"
FIGURES: dict[str, list[str]] = {
    "peers": [],
    "digits": ["digits.svg"],
    "cartpole": ["cartpole.svg"],
    "ring": ["ring.svg"],
    "ablations": ["interval.svg"],
    "replay": ["schedules.svg"],
    "tradeoff": ["front.svg"],
    "stopping": ["stopping-digits.svg"],
}
HEAD = """# How good the strategies are

*Read this to see how the strategies compare, with each other and with decayed learning rates.*

- **A tuned decay beats populations where the learning rate is all there is.** Where other hyperparameters matter,
  populations often win. [Is it worth it?](strategies/is-it-worth-it.md) says which to use when.
- **A learned optimizer gains from populations; two small policies hardly do.** PBT beats the cosine on a pendulum,
  but constant values do too.
- **In their own code, Ray Tune and Syne Tune win one task and lose one or two.** Syne Tune, and Ray Tune if it
  waits for all members, beat `PBT` on the small quadratic. Both lose on the digits, and Syne Tune on the
  policy.
- **Few members that train long beat many that train briefly**, on 6 of 11 tasks. The other settings of PBT matter
  less than the interval between decisions.
- **On the digits, population based training has the best medians**, and the schedule that it finds is
  better than constant values.
- **On CartPole and the ring, no strategy stands out.** With this number of seeds, only large differences show.
- **On the digits, copying matters most; on the toy problem, exploring.** Without both, PBT is a random search.
- **With two goals, Pareto rules find the front.** A weighted sum finds one point of it.
- **Of the ways to stop long runs early, ASHA gains most.**
- **Most published shapes show on small tasks, too**: on long runs PBT falls behind random search, and MF-PBT
  does not.
- **At equal wall time, the default quorum keeps most of a population's lead** when one of 16 workers is slow; a
  barrier loses it.

Unless a section differs, all strategies in a table get the same budget of training steps and the same seeds.
Selection sees the validation score; the tables show the selected checkpoint on data that neither selection nor
tuning has seen.
*p* is against the first row, paired by seed (Wilcoxon, two-sided, adjusted by Holm); *seeds* is how many seeds
would show the difference with 80 % power. *age* is the number of steps of the best weights, *steps* that of all
members. `single worker explores` spends all steps on one member. Grids were chosen by hand. All runs clipped at
the bounds of a range, as `Perturb(clip=True)` does.

`python bench/quality/everything.py` repeats this and writes the page, in about 80 minutes on two cores.
"""
"""It says what the results in the repository mean: read it again when they change."""


def page(folder: Path, before: str = "") -> str:
    """Return the page; sections of comparisons that the folder lacks stay as they were before."""
    written = schedules_page.sections(folder) | settings_page.section(folder)
    for name, summary in read(folder).items():
        parts = [summary["text"]]
        parts += [f"![{summary['title']}](figures/{figure})" for figure in FIGURES[name]]
        for table in summary["tables"]:
            parts += [table["caption"], markdown(table["rows"], notes=table["notes"])]
        written[summary["title"]] = "\n\n".join(part.strip() for part in parts)
    written |= published_page.section(folder) | wall_time_page.section(folder)
    # Sections that were there keep their places.
    earlier = dict(section.split("\n", 1) for section in before.split("\n## ")[1:])
    sections = [f"## {title}\n\n{text.strip()}" for title, text in (earlier | written).items()]
    return "\n\n".join([HEAD.strip(), *sections]) + "\n"


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=RESULTS, help="where results are kept")
    parser.add_argument("--out", type=Path, default=DOCS, help="the page")
    options = parser.parse_args()
    options.out.write_text(page(options.folder, options.out.read_text() if options.out.exists() else ""))
    print(f"wrote {options.out}")


if __name__ == "__main__":
    main()
