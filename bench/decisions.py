"""How long each strategy decides in a large population, on SQLite, its reading of the store included.

Run: python bench/decisions.py [--members 1000] [--output bench/results/decisions.json]
"""

import argparse
import json
import sqlite3
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from control_plane import STEPS, add_scores, quantile, rules, timed
from machine import facts
from phyla.machine.view import View
from phyla.store import open_store
from phyla.strategies import (
    ASHA,
    PBT,
    Backtrack,
    BinaryTournament,
    Context,
    Crossover,
    Decision,
    InitiatorPBT,
    RandomSearch,
    Strategy,
    Truncation,
    TTest,
    WinnerTakesAll,
    decision_rng,
)

LIMIT_MS = 10.0

ELITES = "UPDATE members SET best = head"


def strategies(size: int) -> Mapping[str, tuple[Strategy, float]]:
    """Return what is measured, with the longest median that is accepted, in milliseconds."""
    pbt = partial(PBT, population_size=size, steps_per_trial=STEPS, total_steps=10**9)
    initiators = partial(InitiatorPBT, population_size=size, steps_per_trial=STEPS, total_steps=10**9)
    return {
        "PBT, Truncation": (pbt(exploit=Truncation(0.25)), LIMIT_MS),
        "PBT, Truncation, Crossover": (pbt(exploit=Truncation(0.5), explore=Crossover()), LIMIT_MS),
        "PBT, TTest": (pbt(exploit=TTest()), LIMIT_MS),
        "PBT, BinaryTournament": (pbt(exploit=BinaryTournament()), LIMIT_MS),
        "PBT, WinnerTakesAll": (pbt(exploit=WinnerTakesAll()), LIMIT_MS),
        "PBT, Backtrack": (pbt(exploit=Backtrack()), LIMIT_MS),
        "InitiatorPBT": (initiators(), LIMIT_MS),
        "InitiatorPBT, without gate": (initiators(gate=False), LIMIT_MS),
        "PBT, min_scores": (pbt(exploit=Truncation(0.25), min_scores=2), LIMIT_MS),
        "ASHA": (ASHA(size, 100 * STEPS, STEPS), LIMIT_MS),
        "RandomSearch": (RandomSearch(size, 10**9, steps_per_trial=STEPS), LIMIT_MS),
    }


def measure(path: Path, strategy: Strategy, decisions: int) -> dict[str, float]:
    """Time decisions about members drawn at random, each in a transaction of its own."""
    going_by = replace(rules(strategy.population_size), strategy=strategy)
    store = open_store(f"sqlite:///{path}")
    rng = np.random.default_rng(0)
    times: list[float] = []
    kinds: dict[str, int] = {}
    for index in rng.integers(strategy.population_size, size=decisions).tolist():
        with store.transaction(1, exclusive=strategy.exclusive) as view:
            context = Context(
                space=going_by.space,
                objective=going_by.objective,
                rng=decision_rng(0, index, 1, 0),
                now=view.now(),
                history=view,
            )

            def decide(view: View = view, context: Context = context, index: int = index) -> Decision:
                population = view.members()
                return strategy.decide(population[index], population, context)

            decision = timed(decide, times)
            kind = str(decision.reason.get("decision", "wait"))
            kinds[kind] = kinds.get(kind, 0) + 1
    store.close()
    return {"median_ms": quantile(times, 0.5), "p99_ms": quantile(times, 0.99), **kinds}


def prepare(path: Path, size: int) -> None:
    """Make a study in which every member has completed a trial and has an elite."""
    store = open_store(f"sqlite:///{path}")
    store.create_study("bench", {}, 1, size)
    store.close()
    add_scores(path, 1, size)
    connection = sqlite3.connect(path)
    with connection:
        connection.execute(ELITES)
    connection.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--members", type=int, default=1000)
    parser.add_argument("--decisions", type=int, default=300)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "decisions.json")
    options = parser.parse_args()
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, (strategy, limit) in strategies(options.members).items():
            path = Path(folder) / f"{strategy.population_size}.db"
            if not path.exists():
                prepare(path, strategy.population_size)
            found[name] = {**measure(path, strategy, options.decisions), "limit_ms": limit}
            print(f"{name:<30} {found[name]}")
        found = {"machine": facts(Path(folder)), "members": options.members, **found}
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
