"""How long `Optuna` takes to suggest beside finished members, in memory, in processor time.

Run from the repository: `python bench/optuna_decisions.py [--members 100 1000]`.
"""

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np

import phyla
from machine import facts
from phyla.machine import Rules
from phyla.population import Context, decision_rng
from phyla.records import MemberState
from phyla.simulation import Crew, Durations, Hazards, LearningCurve, Simulator

SPACE = phyla.Space(rate=phyla.Float(1e-5, 1.0, log=True), momentum=phyla.Float(0.0, 1.0))
OBJECTIVE = phyla.Maximize("Q")
STEPS = 10


def measure(sampler: str, members: int) -> float:
    """Return the median milliseconds of three suggestions beside so many finished members."""
    simulator = Simulator(
        Rules(space=SPACE, objective=OBJECTIVE, strategy=phyla.RandomSearch(members, STEPS)),
        0,
        crew=Crew(workers=8),
        durations=Durations(trial_s=1.0),
        hazards=Hazards(),
        fitness=LearningCurve(SPACE, OBJECTIVE, STEPS),
        rng=np.random.default_rng(0),
    )
    simulator.run()
    strategy = phyla.Optuna(members, STEPS, sampler=sampler)
    times = []
    for index in range(3):
        with simulator.store.reader(simulator.study) as view:
            member = replace(view.member(index), head=None, spent_steps=0, state=MemberState.READY)
            context = Context(space=SPACE, objective=OBJECTIVE, rng=decision_rng(0, index, 0, 0), now=0.0)
            began = time.process_time()
            strategy.decide(member, view, context)
            times.append((time.process_time() - began) * 1e3)
    return median(times)


def main() -> None:
    """Print the table and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--members", type=int, nargs="+", default=[100, 1000])
    parser.add_argument("--samplers", nargs="+", default=["random", "tpe"])
    parser.add_argument("--out", type=Path, default=Path("bench/results/optuna_decisions.json"))
    options = parser.parse_args()
    found = {}
    for sampler in options.samplers:
        for members in options.members:
            found[f"{sampler}, {members}"] = measure(sampler, members)
            print(f"{sampler:<8}{members:>8}{found[f'{sampler}, {members}']:>9.1f} ms")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({"machine": facts(), "median_ms": found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
