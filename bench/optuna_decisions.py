"""How long `Optuna` takes to suggest beside finished runs, on SQLite, its reading of the store included.

Beside it: Optuna alone, asked for the same in a study of its own that it keeps in memory. Processor time.

Run from the repository: `python bench/optuna_decisions.py [--members 100 1000 10000] [--samplers tpe ...]`.
"""

import argparse
import json
import math
import sqlite3
import tempfile
import time
import warnings
from dataclasses import replace
from pathlib import Path
from statistics import median

import optuna

import phyla
from control_plane import STEPS
from decisions import prepare
from machine import facts
from phyla.integrations.optuna_search import SAMPLERS
from phyla.records import MemberState
from phyla.store import open_store
from phyla.strategies import Context, Start, decision_rng

SPACE = phyla.Space(rate=phyla.Float(1e-5, 1.0, log=True), momentum=phyla.Float(0.0, 1.0))
OBJECTIVE = phyla.Maximize("score")
SUGGESTIONS = 5
PLACES = """UPDATE jobs SET params = json_object(
    'rate', exp(-11.5 * ((id * 7919) % 10007) / 10007.0), 'momentum', ((id * 104729) % 10009) / 10009.0)"""


def ours(path: Path, sampler: str, members: int) -> list[float]:
    """Return the milliseconds of some suggestions for a new member."""
    strategy = phyla.Optuna(members, STEPS, sampler=sampler)
    store = open_store(f"sqlite:///{path}")
    times = []
    for index in range(SUGGESTIONS + 1):
        with store.transaction(1, exclusive=True) as view:
            population = view.members()
            member = replace(population[index], head=None, progress=0, state=MemberState.READY)
            context = Context(
                space=SPACE, objective=OBJECTIVE, rng=decision_rng(0, index, 0, 0), now=0.0, history=view
            )
            began = time.process_time()
            decision = strategy.decide(member, population, context)
            assert isinstance(decision, Start), decision
            times.append((time.process_time() - began) * 1e3)
    store.close()
    # The first one imports things.
    return times[1:]


def alone(path: Path, sampler: str) -> list[float]:
    """Return the milliseconds of Optuna's own suggestions beside the same runs."""
    told: dict[str, optuna.distributions.BaseDistribution] = {
        "rate": optuna.distributions.FloatDistribution(1e-5, 1.0, log=True),
        "momentum": optuna.distributions.FloatDistribution(0.0, 1.0),
    }
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    made = getattr(optuna.samplers, SAMPLERS[sampler][0])(seed=0)
    study = optuna.create_study(direction="maximize", sampler=made)
    rows = sqlite3.connect(path).execute("SELECT params, fitness FROM jobs ORDER BY id").fetchall()
    study.add_trials(
        optuna.trial.create_trial(params=json.loads(params), distributions=told, value=score)
        for params, score in rows
    )
    times = []
    for _ in range(SUGGESTIONS + 1):
        began = time.process_time()
        trial = study.ask()
        trial.suggest_float("rate", 1e-5, 1.0, log=True)
        trial.suggest_float("momentum", 0.0, 1.0)
        times.append((time.process_time() - began) * 1e3)
    return times[1:]


def prepared(folder: Path, members: int) -> Path:
    """Return a study in which every member has finished, each with hyperparameters of its own."""
    path = folder / f"{members}.db"
    if not path.exists():
        prepare(path, members)
        connection = sqlite3.connect(path)
        connection.create_function("exp", 1, math.exp)
        with connection:
            connection.execute(PLACES)
            connection.execute("UPDATE members SET state = 'done'")
        connection.close()
    return path


def main() -> None:
    """Print the table and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--members", type=int, nargs="+", default=[100, 1000, 10_000])
    parser.add_argument("--samplers", nargs="+", choices=SAMPLERS, default=["tpe"])
    parser.add_argument("--out", type=Path, default=Path("bench/results/optuna_decisions.json"))
    options = parser.parse_args()
    found: dict[str, dict[str, float]] = {}
    print(f"{'':<8}{'members':>8}{'phyla':>12}{'Optuna alone':>16}")
    with tempfile.TemporaryDirectory() as folder:
        for sampler in options.samplers:
            for members in options.members:
                path = prepared(Path(folder), members)
                with_phyla, with_optuna = median(ours(path, sampler, members)), median(alone(path, sampler))
                found[f"{sampler}, {members}"] = {"median_ms": with_phyla, "alone_ms": with_optuna}
                print(f"{sampler:<8}{members:>8}{with_phyla:>9.2f} ms{with_optuna:>13.2f} ms", flush=True)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({"machine": facts(), **found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
