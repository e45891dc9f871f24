"""The section of docs/results.md about equal wall time, from what `wall_time.py` found."""

import json
from pathlib import Path
from typing import Any

from tables import markdown_table, number, sign

TITLE = "Equal wall time"
TEXT = """In the other sections all have the same steps; here, the same wall time. 16 members, or as many
steps, train on 1, 4 or 16 workers; with several, one worker is three times slower. The time is up when the workers
could have trained all steps, had none ever waited. {seeds} seeds; the real controller on a virtual clock, on two
tasks of the first section: *even noise*, where only the rate is searched, and *ravine*. Rates have no decay, also
those of ASHA (one in 3 goes on, no quorum).

- **With the default quorum, a slow worker costs little**: PBT and MF-PBT keep most of their lead.
- **A barrier loses that lead with 16 workers.** With `quorum=1.0`, and with the initiator rule, all members wait
  for the slow worker. When the time is up, PBT is far behind random search on *even noise*, and about equal on
  *ravine*.
- **With one worker, the quorum makes no difference.**

Cells have the median when the time is up, and quartiles; **+** better than the first row, - worse (Wilcoxon,
paired by seed, 5 % after Holm). *ended* is when the whole study had ended with 1, 4 and 16 workers, in units of
that time. {seeds} seeds show only large differences: MF-PBT against PBT would take 30 to several thousand. Lower
is better.

`python bench/quality/wall_time.py` repeats this, in {minutes:.0f} minutes of one processor."""


def section(folder: Path) -> dict[str, str]:
    """Return the section by its heading; nothing if the comparison has not been run."""
    path = folder / "wall_time.json"
    if not path.exists():
        return {}
    document = json.loads(path.read_text())
    text = TEXT.format(seeds=len(document["seeds"]), minutes=document["process_s"] / 60)
    tasks = dict.fromkeys(found["task"] for found in document["tables"])
    return {
        TITLE: "\n\n".join([text, *(part for task in tasks for part in (f"*{task}*:", table(document, task)))])
    }


def table(document: dict[str, Any], task: str) -> str:
    """Return contenders by workers: the value when the time is up, a mark against the first, and when it ended."""
    found = [part for part in document["tables"] if part["task"] == task]
    heads = ["", *(f"{part['workers']} worker{'s' * (part['workers'] > 1)}" for part in found), "ended"]
    rows = zip(*(part["rows"] for part in found), strict=True)
    lines = [[row[0]["label"], *map(_cell, row), " / ".join(f"{cell['end']:.2f}" for cell in row)] for row in rows]
    return markdown_table(heads, lines)


def _cell(row: dict[str, Any]) -> str:
    """Return the median, its quartiles, and + where it is better than the first row, - where worse."""
    mark = {"+": " **+**", "-": " -"}.get(sign(row), "")
    return f"{number(row['median'])}{mark} ({number(row['low'])} to {number(row['high'])})"
