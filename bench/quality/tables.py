"""Tables of what strategies came to: medians and quartiles, and paired tests against one of them."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from comparing import Outcome
from scipy.stats import norm, wilcoxon

from phyla.significance import holm

Row = dict[str, Any]


def rows(outcomes: Sequence[Outcome], baseline: str, *, maximize: bool, value: str = "report") -> list[Row]:
    """Return one row a label, in the order of first appearance.

    Compared are the seeds that a label and the baseline share, by Wilcoxon's signed-rank test, two-sided; p is
    adjusted by Holm for the number of labels.

    Args:
        outcomes: of all labels.
        baseline: the label that others are compared with.
        maximize: whether high values are good.
        value: which of the final values.
    """
    by_label: dict[str, dict[int, Outcome]] = {}
    for outcome in outcomes:
        by_label.setdefault(outcome["label"], {})[outcome["seed"]] = outcome
    found = [_row(label, ones, by_label[baseline], maximize, value) for label, ones in by_label.items()]
    others = [row for row in found if "p" in row]
    for row, p in zip(others, holm([row["p"] for row in others]), strict=True):
        row["p_holm"] = p
    return found


def _row(
    label: str, ones: Mapping[int, Outcome], baseline: Mapping[int, Outcome], maximize: bool, value: str
) -> Row:
    values = np.array([one["final"][value] for one in ones.values()])
    low, middle, high = np.percentile(values, [25, 50, 75])
    row: Row = {
        "label": label,
        "median": float(middle),
        "low": float(low),
        "high": float(high),
        "n": len(values),
        "age": float(np.median([one["age"] for one in ones.values()])),
        "spent": float(np.median([one["spent"] for one in ones.values()])),
    }
    shared = sorted(set(ones) & set(baseline))
    if ones is baseline or not shared:
        return row
    gain = np.array([ones[seed]["final"][value] - baseline[seed]["final"][value] for seed in shared])
    gain = gain if maximize else -gain
    row["won"], row["lost"] = int((gain > 0).sum()), int((gain < 0).sum())
    row["p"] = float(wilcoxon(gain).pvalue) if gain.any() else 1.0
    row["needed"] = needed(gain)
    return row


def needed(gain: Any, *, level: float = 0.05, power: float = 0.8) -> float:
    """Return how many seeds would show these differences, if the next ones were like them; infinity if none would.

    The normal approximation for a paired test, over the efficiency of Wilcoxon's test, 3 / pi (Lehmann 1975).
    """
    spread = float(np.std(gain, ddof=1)) if len(gain) > 1 else 0.0
    mean = abs(float(np.mean(gain)))
    if mean == 0.0:
        return float("inf")
    quantiles = float(norm.ppf(1 - level / 2) + norm.ppf(power))
    return max(6.0, math.ceil(math.pi / 3 * (quantiles * spread / mean) ** 2))


def markdown(found: Sequence[Row], *, notes: Mapping[str, str] | None = None, first: str = "") -> str:
    """Return rows as a table in Markdown.

    Args:
        found: the rows.
        notes: a further column by label, such as the setting that was chosen.
        first: heading of the first column.
    """
    heads = [
        first,
        *(["setting"] if notes else []),
        "median",
        "quartiles",
        "p",
        "seeds",
        "age",
        "steps",
    ]
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for row in found:
        against = ["", ""]
        if "p" in row:
            seeds = f"{row['needed']:.0f}" if row["needed"] < 1000 else "> 1000"
            against = [p_value(row["p_holm"]), seeds]
        cells = [
            row["label"],
            *([notes.get(row["label"], "")] if notes else []),
            number(row["median"]),
            f"{number(row['low'])} - {number(row['high'])}",
            *against,
            f"{row['age']:.0f}",
            f"{row['spent']:.0f}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def markdown_table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return cells as a table in Markdown."""
    return (
        "\n".join("| " + " | ".join(line) + " |" for line in [heads, ["---"] * len(heads), *lines])
        .replace("| --- ", "|---")
        .replace("--- |", "---|")
    )


def sign(row: Mapping[str, Any]) -> str:
    """Return + where a row is better than its baseline, - where worse, = where the 5 % level shows neither."""
    if "p_holm" not in row:
        return ""
    return "=" if row["p_holm"] > 0.05 else "+" if row["won"] > row["lost"] else "-"


def number(value: float) -> str:
    """Return a value with four decimals, or one if it is large."""
    return f"{value:.1f}" if abs(value) >= 100 else f"{value:.4f}"


def p_value(value: float) -> str:
    """Return p with as many digits as matter."""
    return f"{value:.2f}" if value >= 0.095 else f"{value:.1g}"


def curves(outcomes: Sequence[Outcome], *, points: int = 60) -> dict[str, dict[str, list[float | None]]]:
    """Return, by label, the best fitness so far over the steps of all members: median and quartiles over seeds.

    Where a seed has no fitness yet, nothing is said.
    """
    by_label: dict[str, list[list[list[float]]]] = {}
    for outcome in outcomes:
        by_label.setdefault(outcome["label"], []).append(outcome["curve"])
    found: dict[str, dict[str, list[float | None]]] = {}
    for label, each in by_label.items():
        at = np.linspace(0, max(curve[-1][0] for curve in each), points + 1)[1:]
        values = np.array([_held(curve, at) for curve in each])
        known = ~np.isnan(values).any(axis=0)
        quartiles = np.percentile(values[:, known], [25, 50, 75], axis=0)
        found[label] = {
            "steps": at[known].tolist(),
            **dict(zip(("low", "median", "high"), quartiles.tolist(), strict=True)),
        }
    return found


def _held(curve: Sequence[Sequence[float]], at: Any) -> Any:
    steps = np.array([point[0] for point in curve])
    best = np.array([point[1] for point in curve])
    index = np.searchsorted(steps, at, side="right") - 1
    return np.where(index >= 0, best[np.maximum(index, 0)], np.nan)
