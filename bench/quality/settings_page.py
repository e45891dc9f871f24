"""The section of docs/results.md about the settings of PBT, from what `settings.py` found."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tables import markdown_table, number, sign

TITLE = "What each setting of PBT is worth"
TEXT = """The tasks of the first section, {seeds} other seeds. One setting at a time differs from the defaults:
factors 0.8 and 1.2, no resampling, a quantile of 0.2, no burn-in. Twice the members train half as long, so the
number of steps is equal. The first number counts tasks on which a setting is better than the defaults at a level
of 5 %, the second those on which it is worse (Wilcoxon, paired by seed, two-sided, adjusted by Holm for the
settings of a task). Medians follow, with the same marks.

- **Fewer members that train longer** win wherever training longer helps: mostly 8 members for twice the steps
  instead of 16. Fewer than 8 were not tried.
- **Factors of 0.8 and 1.2, or 0.67 and 1.5, are safe.** Smaller ones are too slow on four tasks. With many
  decisions 0.5 and 2 are too coarse on six.
- **Resampling** helps where the best value jumps, or is far from the start. With many decisions it hurts as
  often.
- **A quantile of 0.1 is less greedy.** With many decisions it helps on the three tasks where selection lets the
  rate fall too early, and hurts on none. Otherwise the quantile hardly matters.
- **A burn-in** helps on two or fewer tasks, and hurts on none.

`python bench/quality/settings.py` repeats this, in {minutes:.0f} minutes of one processor."""


def section(folder: Path) -> dict[str, str]:
    """Return the section by its heading; nothing if the comparison has not been run."""
    path = folder / "settings.json"
    if not path.exists():
        return {}
    document = json.loads(path.read_text())
    text = TEXT.format(seeds=len(document["seeds"]), minutes=document["process_s"] / 60)
    usual, short = map(table, document["tables"])
    return {TITLE: "\n\n".join([text, "With 20 to 40 decisions:", usual, "With 50 or 100:", short])}


def table(tasks: Sequence[dict[str, Any]]) -> str:
    """Return settings by tasks: how often they are better and worse, and medians."""
    lines = []
    for label in tasks[0]["rows"]:
        rows = [task["rows"][label] for task in tasks]
        marks = [sign(row) for row in rows]
        counts = [str(marks.count(which)) if any(marks) else "" for which in "+-"]
        medians = [f"{number(row['median'])} {mark}".strip() for row, mark in zip(rows, marks, strict=True)]
        lines.append([label, *counts, *medians])
    names = [task["name"] + (" (higher is better)" if task["maximize"] else "") for task in tasks]
    return markdown_table(["", "better", "worse", *names], lines)
