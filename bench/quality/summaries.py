"""What a comparison found, as one JSON file with the machine's facts, for the tables and figures of the docs."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from comparing import RESULTS, Outcome
from tables import curves, rows

from machine import facts

NAMES = ("peers", "digits", "cartpole", "ring", "ablations", "replay", "tradeoff", "stopping")


def table(
    caption: str,
    outcomes: Sequence[Outcome],
    baseline: str,
    *,
    maximize: bool,
    value: str = "report",
    notes: dict[str, str] | None = None,
) -> dict[str, Any]:
    """Return one table.

    Args:
        caption: what stands above it.
        outcomes: of all labels.
        baseline: the label that others are compared with.
        maximize: whether high values are good.
        value: which of the final values.
        notes: a further column by label.
    """
    return {
        "caption": caption,
        "baseline": baseline,
        "maximize": maximize,
        "rows": rows(outcomes, baseline, maximize=maximize, value=value),
        "notes": notes or {},
        "curves": curves(outcomes),
    }


def write(
    name: str, title: str, text: str, found: Sequence[dict[str, Any]], *, folder: Path = RESULTS, **more: Any
) -> None:
    """Write a summary, and print where.

    Args:
        name: of its file.
        title: its heading.
        text: what stands below that.
        found: its tables.
        folder: where.
        more: what figures need besides.
    """
    path = folder / f"{name}.json"
    document = {"title": title, "text": text, "machine": facts(), "tables": list(found), **more}
    path.write_text(json.dumps(document, indent=1))
    print(f"wrote {path}")


def read(folder: Path = RESULTS) -> dict[str, dict[str, Any]]:
    """Return the summaries that there are, by name."""
    paths = {name: folder / f"{name}.json" for name in NAMES}
    return {name: json.loads(path.read_text()) for name, path in paths.items() if path.exists()}
