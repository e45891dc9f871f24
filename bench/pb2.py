"""How long PB2 takes for one suggestion, by the number of completed trials it looks at.

Run: python bench/pb2.py [--quick] [--output bench/results/pb2.json]
"""

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path

# Worker processes share the cores out among their numerical libraries; more threads than cores cost a lot.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from machine import facts

sys.path.insert(0, str(Path(__file__).parents[1] / "tests/support/machine"))

from phyla.space import Float, Space
from phyla.strategies import PB2
from populations import Listed, context

NAMES = ("lr", "momentum", "decay", "dropout")
SPACE = Space({name: Float(0.0, 1.0) for name in NAMES})


def population(members: int, generations: int, rng: np.random.Generator) -> Listed:
    listed = Listed(*([] for _ in range(members)))
    for member in range(members):
        parent, fitness = None, 0.0
        for generation in range(generations + 1):
            params = {name: float(rng.random()) for name in NAMES}
            best = 0.2 + 0.6 * generation / generations
            fitness += 1 - sum((u - best) ** 2 for u in params.values()) + float(rng.normal(0, 0.1))
            parent = listed.add(member, generation, fitness, parent, params=params)
    return listed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few repetitions")
    parser.add_argument("--output", type=Path, help="also write the figures here, as JSON")
    options = parser.parse_args()
    repetitions = 3 if options.quick else 15
    times = {}
    for rows in (10, 100, 300, 1000):
        listed = population(10, rows // 10, np.random.default_rng(rows))
        source = listed.scored_trial(max(listed.trials))
        taken = []
        for repetition in range(repetitions + 1):
            begin = time.perf_counter()
            explored = PB2().propose(source, listed, context(repetition, space=SPACE, history=listed))
            taken.append((time.perf_counter() - begin) * 1e3)
            assert explored is not None
            assert "kappa" in str(explored.facts), explored.facts
        later = sorted(taken[1:])
        times[rows] = {
            "first_ms": round(taken[0], 1),
            "median_ms": round(statistics.median(later), 1),
            "worst_ms": round(later[-1], 1),
        }
        print(f"{rows:>5} rows, {len(NAMES)} numbers: {times[rows]}")
    if options.output:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps({"machine": facts(), "suggestion": times}, indent=2) + "\n")


if __name__ == "__main__":
    main()
