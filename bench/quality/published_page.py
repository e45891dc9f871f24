"""The section of docs/results.md about published curves, and its figure, from what `published.py` found."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tables import markdown_table, number, p_value

TITLE = "Published results, scaled down"
FIGURE = "published.svg"
RANDOM = "random, constant"
TEXT = """Figures of three papers, on tasks that train for seconds: does the shape show? {seeds} seeds. Values are
those of the best score so far, medians over seeds; *p* is against the first row, at the end (Wilcoxon, paired by
seed, two-sided, adjusted by Holm). The papers train far larger models, so only order and shape can be compared.
*Shape only* means that we have not read the paper's numbers.

`python bench/quality/published.py` repeats this, in {minutes:.0f} minutes of one processor."""
STORIES = {
    "toy": """### Jaderberg et al. 2017, figure 2: the toy

*Paper* (arXiv 1711.09846; shape only): two workers, each of which sees one of two directions. PBT comes close
to the maximum of Q, and a grid search does not.

*Ours*: the same order, with Gaussian steps and copied weights. PBT is better than exploring alone, which varies
most, and than the grid. *Different*: exploiting alone does as well as PBT (p = 0.58), because each member
starts with the direction that the other lacks.""",
    "policy": """### Jaderberg et al. 2017, reinforcement learning: a policy

*Paper* (shape only): the population is above a random search of equal cost, early and at the end, and the
learning rates that it finds fall.

*Ours*, a policy in ten contexts: with a short interval, PBT is ahead through the first half. *Different*: at
the end {seeds} seeds show no difference from constant values (50 seeds of the first section do), and the
learning rate does not fall.""",
    "game": """### Jaderberg et al. 2017, GANs: two players

*Paper* (shape only): PBT's generators score better than those of a random search, with schedules of both
learning rates that the search found.

*Ours*, a game of two players with noise: PBT leads from a quarter of the training on, and ends better than
constant rates; its median is better than the tuned cosine's, too. Both rates fall, with a short interval to a
quarter of their first values. No difference in shape.""",
    "sizes": """### Li et al. 2019: 5 members or 20

*Paper* (arXiv 1902.01894, WaveNet, learning rate only; loss read off the figures at equal steps of all): PBT
with 5 workers and 5 members 5.61, grid 5.66, PBT with 5 workers and 20 members 5.71, a Gaussian process 5.745,
CMA-ES 5.775. With as many steps for each member, 20 members are better than 5.

*Ours*, the language model of letters: learning rate and momentum; 5 members train 1,600 steps, 20 members 400.
With as many steps for each member (400: 2,000 steps of 5 members, 8,000 of 20), 20 members are better, as in
the paper. At equal steps of all, 5 members lead 20 up to half of the training, and both populations end with
better medians than random search, TPE and CMA-ES. *Different*: at the end, 5 members are not better than 20
(p = 0.11), nor shown to be better than a random search of 5 long runs (p = 0.10). No Gaussian process was run.""",
    "longer": """### Doulazmi et al. 2025: long runs

*Paper* (arXiv 2506.03225, Brax, 1,000 rounds of a million steps; shape only): PBT leads at first, and falls
behind random search on long runs. MF-PBT leads early and at the end.

*Ours*, the noisy quadratic in 1,000 dimensions with 32 members: the same shape. MF-PBT needs no good interval.
*Different*: with an interval of a sixteenth of the training, PBT does not fall behind, but has no lead early.
In 100 dimensions, PBT every 20 steps does not fall behind within 1,000 steps (5 seeds).""",
}
"""They say what the results in the repository mean: read them again when those change."""


def section(folder: Path) -> dict[str, str]:
    """Return the section by its heading; nothing if the experiments have not been run."""
    path = folder / "published.json"
    if not path.exists():
        return {}
    document = json.loads(path.read_text())
    text = TEXT.format(seeds=len(document["seeds"]), minutes=document["process_s"] / 60)
    parts = [text, f"![Published results, scaled down](figures/{FIGURE})"]
    for name, found in document["experiments"].items():
        parts += [
            _story(name, document),
            f"{caption(found)}:",
            table(found),
            *schedules(found),
            *crossings(name, found),
        ]
    return {TITLE: "\n\n".join(parts)}


def _story(name: str, document: dict[str, Any]) -> str:
    return STORIES[name].replace("{seeds}", str(len(document["seeds"])))


def caption(found: dict[str, Any]) -> str:
    """Return what a table has, and which way is better."""
    better, report = "higher" if found["maximize"] else "lower", found["report"]
    return f"{report[0].upper()}{report[1:]}; {better} is better"


def table(found: dict[str, Any]) -> str:
    """Return contenders by steps: medians, quartiles at the end, and p against the first."""
    what = "steps of all members" if found["of_all"] else "steps"
    heads = ["", *(f"{step} {what}" if not at else str(step) for at, step in enumerate(found["at"]))]
    lines = []
    for label, row in found["rows"].items():
        medians = [number(median_at(found["curves"][label], step)) for step in found["at"]]
        p = p_value(row["p_holm"]) if "p_holm" in row else ""
        lines.append([label, *medians, f"{number(row['low'])} to {number(row['high'])}", p])
    return markdown_table([*heads, "quartiles at the end", "p"], lines)


def median_at(curve: dict[str, Sequence[float]], step: int) -> float:
    """Return the median at the last point that is not later, or at the first."""
    earlier = [median for at, median in zip(curve["steps"], curve["median"], strict=True) if at <= step]
    return earlier[-1] if earlier else curve["median"][0]


def schedules(found: dict[str, Any]) -> list[str]:
    """Return hyperparameters along the best lineages, at the start, at each quarter, and at the end."""
    if not found["schedules"]:
        return []
    lines = [
        [f"{name}, {label}", *(f"{path[round(share * (len(path) - 1))]:.3g}" for share in (0, 0.25, 0.5, 0.75, 1))]
        for label, paths in found["schedules"].items()
        for name, path in paths.items()
    ]
    heads = ["", "start", "a quarter", "half", "three quarters", "end"]
    return [
        "Hyperparameters along the lineage of the best member, medians over seeds:",
        markdown_table(heads, lines),
    ]


def crossing(found: dict[str, Any], label: str) -> int | None:
    """Return the step from which on random search has the better median; None if it has not at the end."""
    sign, random, curve = (-1 if found["maximize"] else 1), found["curves"][RANDOM], found["curves"][label]
    ahead = [sign * median_at(random, at) < sign * median_at(curve, at) for at in curve["steps"]]
    if not ahead[-1]:
        return None
    last = max((place for place, random_leads in enumerate(ahead) if not random_leads), default=-1)
    return int(curve["steps"][last + 1])


def crossings(name: str, found: dict[str, Any]) -> list[str]:
    """Return where each contender falls behind random search for good, for the long runs."""
    if name != "longer":
        return []
    lines = []
    for label in found["rows"]:
        step = crossing(found, label)
        lines += [] if label == RANDOM else [[label, "never" if step is None else f"from step {step}"]]
    return ["Behind random search for good:", markdown_table(["", "behind"], lines)]
