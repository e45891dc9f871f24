"""The sections of docs/results.md about decays and populations, from what `schedules.py` found."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from schedules import COSINE, PBT, mark
from tables import markdown_table, number, p_value

TITLE = "Populations against decayed learning rates"
TEXT = """{tasks} cheap tasks, {seeds} seeds each; seeds differ in data, initial weights and random numbers. All
contenders train the same number of steps. A decay multiplies the learning rates from a searched peak down to 0;
its peak and all other hyperparameters are drawn at random, as often as a population has members. Selection sees
a validation score where there is one; the value is exact, or measured on data that selection never saw. `PBT`
has the default rules.

Marks compare with the tuned cosine, and then with `PBT`: + better, - worse, = no difference at 5 % (Wilcoxon,
paired by seed, two-sided, adjusted by Holm for the contenders of a task). The columns *p* have the adjusted
values. The figure ranks medians; a line joins contenders that the Nemenyi test does not tell apart.

A pilot on 20 other seeds says how many seeds show the smallest difference worth having with 90 % power, between
`PBT` and a random search without a decay, or with a cosine.

`python bench/quality/schedules.py` repeats this, in {minutes:.0f} minutes of one processor.

![Mean ranks of contenders](figures/ranks.svg)"""
CONTROL_TITLE = "Control, and a learned optimizer"
CONTROL_TEXT = """{tasks} more tasks, {seeds} seeds each, with the contenders and marks of the section above.
Two are policies, trained by an actor with a critic: CartPole, and a pendulum that has to be swung up. One is a
learned optimizer: a small network turns gradients into steps, and evolution strategies train it on noisy
quadratic problems. Selection sees what is at hand in such training: the mean reward of the last updates, or the
loss on eight problems. The value is measured at the end, on episodes or problems that selection never saw.

- **Learned optimizer: populations win.** All of them beat the cosine, and PBT beats every random search, TPE,
  the Gaussian process and ASHA. Only the short interval beats PBT.
- **Pendulum: PBT beats the cosine, but not constant values.** Constant values beat the cosine too. MF-PBT with
  a short interval is worse than PBT, and no better than the cosine.
- **CartPole: hardly anything differs.** The seeds vary from about 200 steps to the limit of 500. PBT with the
  settings of Ray Tune or Orion beats the cosine; nothing differs from PBT.

On both policies the pilot asks for hundreds of seeds, so differences worth having may be hidden there.

`python bench/quality/schedules.py --tasks cartpole pendulum "learned optimizer"` repeats this, in {minutes:.0f}
minutes of one processor."""
"""It says what the results in the repository mean: read it again when they change."""


def sections(folder: Path) -> dict[str, str]:
    """Return the sections by their headings; those of comparisons that have not been run are left out."""
    parts = ((TITLE, TEXT, "schedules"), (CONTROL_TITLE, CONTROL_TEXT, "control"))
    return {title: _section(text, folder, group) for title, text, group in parts if _path(folder, group).exists()}


def _path(folder: Path, group: str) -> Path:
    return folder / f"{group}.json"


def _section(text: str, folder: Path, group: str) -> str:
    document = json.loads(_path(folder, group).read_text())
    tasks = document["tasks"]
    counts = sorted({row["n"] for table in tasks for row in table["rows"].values()})
    seeds = " to ".join(map(str, dict.fromkeys((counts[0], counts[-1]))))
    text = text.format(tasks=len(tasks), seeds=seeds, minutes=document["process_s"] / 60)
    pilot = _path(folder, f"{group}-pilot")
    needed = json.loads(pilot.read_text())["tasks"] if pilot.exists() else {}
    details = (_details(table, needed.get(table["name"])) for table in tasks)
    return "\n\n".join([text, _overview(document), _medians(tasks), *details])


def _labels(tasks: Sequence[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(label for table in tasks for label in table["rows"]))


def _overview(document: dict[str, Any]) -> str:
    """Return on how many tasks each contender is better and worse than the baselines."""
    heads = [
        "",
        "mean rank",
        *(f"{how} than {name}" for name in ("the cosine", "PBT") for how in ("better", "worse")),
    ]
    rows, tasks = list[list[str]](), document["tasks"]
    for label in sorted(_labels(tasks), key=lambda label: document["ranks"].get(label, 99.0)):
        marks = {
            name: [mark(table["rows"][label], name) for table in tasks if label in table["rows"]]
            for name in (COSINE, PBT)
        }
        counts = [str(found.count(sign)) if any(found) else "" for found in marks.values() for sign in "+-"]
        rank = document["ranks"].get(label)
        few = "" if rank is not None else f" ({len(marks[PBT])} of {len(tasks)} tasks)"
        rows.append([label + few, "" if rank is None else f"{rank:.1f}", *counts])
    return "On how many tasks a contender is better or worse:\n\n" + markdown_table(heads, rows)


def _medians(tasks: Sequence[dict[str, Any]]) -> str:
    """Return contenders by tasks: medians, and the marks against the cosine and PBT."""
    rows = []
    for label in _labels(tasks):
        cells = [table["rows"].get(label) for table in tasks]
        marks = ["" if row is None else "".join(mark(row, name) for name in (COSINE, PBT)) for row in cells]
        medians = ["" if row is None else number(row["median"]) for row in cells]
        rows.append([label, *(f"{value} {signs}".strip() for value, signs in zip(medians, marks, strict=True))])
    heads = ["", *(table["name"] + (" (higher is better)" if table["maximize"] else "") for table in tasks)]
    return "Medians, lower is better unless the column differs:\n\n" + markdown_table(heads, rows)


def _details(table: dict[str, Any], pilot: dict[str, Any] | None) -> str:
    asked = f" (the pilot asks for {max(pilot['seeds'].values())} seeds)" if pilot else ""
    better = "higher" if table["maximize"] else "lower"
    head = (
        f"*{table['name']}*: {table['title']}. {table['members']} members, {table['steps']} steps each, decisions "
        f"every {table['intervals'][1]} steps (short {table['intervals'][0]}, long {table['intervals'][2]}). "
        f"{table['report'].capitalize()}; {better} is better. Worth having: "
        f"{table['unit']:g}{asked}."
    )
    rows = []
    for label, row in table["rows"].items():
        ps = [p_value(row["against"][name]["p_holm"]) if name in row["against"] else "" for name in (COSINE, PBT)]
        rows.append([label, number(row["median"]), f"{number(row['low'])} to {number(row['high'])}", *ps])
    return head + "\n\n" + markdown_table(["", "median", "quartiles", "p, cosine", "p, PBT"], rows)
