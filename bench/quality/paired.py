"""How often does a comparison of two models find a difference? `python bench/quality/paired.py`, seconds.

Two models answer the same questions. A question has a difficulty, a model an ability; an answer is right if
ability and a noise of its own exceed the difficulty (a probit item response model). Questions may come in groups
that share a part of their difficulty and of the noise. Reported is the share of comparisons with p below 5 %: of
the test question by question, clustered by groups, and of Welch's test of the two means. With equal models this is
the error.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from comparing import RESULTS

from machine import facts
from phyla.evaluation.paired import ModelScore, compare_models

DIFFERENCES = (0.0, 0.1, 0.2, 0.3)
QUESTIONS, GROUP = 500, 5
SPREAD = 2.0
"""Standard deviation of the difficulty, where that of an answer's own noise is 1."""


def answers(rng: np.random.Generator, difference: float, *, grouped: bool) -> list[ModelScore]:
    """Return how two models answer, the first of which is better by `difference`."""
    groups = [str(index // GROUP) if grouped else "" for index in range(QUESTIONS)]
    shared = np.repeat(rng.normal(size=QUESTIONS // GROUP), GROUP) if grouped else np.zeros(QUESTIONS)
    difficulty = SPREAD * (rng.normal(size=QUESTIONS) + shared) / (2**0.5 if grouped else 1)
    scores = []
    for ability in (difference, 0.0):
        noise = rng.normal(size=QUESTIONS)
        if grouped:
            noise = (noise + np.repeat(rng.normal(size=QUESTIONS // GROUP), GROUP)) / 2**0.5
        right = (ability + noise > difficulty).astype(float)
        scores.append(
            ModelScore(
                value=float(right.mean()),
                stderr=float(right.std(ddof=1) / QUESTIONS**0.5),
                n=QUESTIONS,
                samples={str(index): float(value) for index, value in enumerate(right)},
                groups={str(index): group for index, group in enumerate(groups) if group},
            )
        )
    return scores


def found(runs: int, difference: float, *, grouped: bool) -> dict[str, float]:
    """Return how often each test finds a difference."""
    rng = np.random.default_rng([runs, round(10 * difference), int(grouped)])
    counts = dict.fromkeys(("paired", "paired, not clustered", "of means"), 0)
    for _ in range(runs):
        first, second = answers(rng, difference, grouped=grouped)
        alone = [ModelScore(value=s.value, samples=s.samples) for s in (first, second)]
        means = [ModelScore(value=s.value, stderr=s.stderr, n=s.n) for s in (first, second)]
        for name, (one, other) in zip(counts, ((first, second), alone, means), strict=True):
            (row,) = compare_models({("questions", "acc"): (one, other)})
            counts[name] += row.p is not None and row.p < 0.05
    return {name: count / runs for name, count in counts.items()}


def main() -> None:
    """Print the table, and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--output", type=Path, default=RESULTS / "paired.json")
    options = parser.parse_args()
    table: dict[str, Any] = {}
    print(f"{'questions':<12}{'difference':>12}{'paired':>10}{'not clustered':>16}{'of means':>10}")
    for grouped in (False, True):
        for difference in DIFFERENCES:
            shares = found(options.runs, difference, grouped=grouped)
            label = f"in groups of {GROUP}" if grouped else "independent"
            table[f"{label}, {difference}"] = shares
            columns = "".join(f"{share:>12.3f}" for share in shares.values())
            print(f"{label:<16}{difference:>8}{columns}")
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps({"machine": facts(), "runs": options.runs, "table": table}, indent=1))


if __name__ == "__main__":
    main()
