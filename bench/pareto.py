"""How much processor time decisions about a Pareto front take, by population and number of goals.

Run: python bench/pareto.py [--quick] [--output bench/results/pareto.json]
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np

from control_plane import STEPS, quantile
from machine import facts
from phyla.controller import Controller
from phyla.machine import Completion, Insert, TrainRules, Update
from phyla.records import (
    Checkpoint,
    Criteria,
    JobState,
    Maximize,
    Member,
    MemberState,
    Pareto,
    Scored,
    TrialRecord,
)
from phyla.space import Float, Space
from phyla.store import open_store
from phyla.strategies import (
    PBT,
    Context,
    ParetoTournament,
    ParetoTruncation,
    crowding,
    front_ranks,
    thinned,
)

NO_HISTORY: Any = None

SPACE = Space(rate=Float(1e-5, 1.0, log=True))


def timed(call: Callable[[], Any], into: list[float]) -> Any:
    """Note processor time, which other work on the machine hardly changes."""
    begin = time.process_time()
    answer = call()
    into.append(time.process_time() - begin)
    return answer


def member(index: int) -> Member:
    return Member(study=1, index=index, state=MemberState.READY, progress=STEPS, generation=1)


def scored(index: int, orders: tuple[float, ...]) -> Scored:
    values = {f"goal{number}": order for number, order in enumerate(orders)}
    return Scored(
        trial=index + 1,
        member=index,
        checkpoint=f"{index + 1}.1",
        index=0,
        step=STEPS,
        params={"rate": 0.01},
        fitness=orders[0],
        order=orders[0],
        criteria=Criteria(values=values, orders=orders),
    )


def vectors(size: int, goals: int) -> np.ndarray:
    """Return vectors whose goals are at odds: near a front, with noise."""
    rng = np.random.default_rng(0)
    shares = rng.dirichlet(np.ones(goals), size)
    return cast("np.ndarray", shares + rng.normal(0, 0.1, shares.shape))


def in_memory(size: int, goals: int, rounds: int) -> dict[str, float]:
    rows = vectors(size, goals)
    population = [
        replace(member(index), states=(scored(index, tuple(map(float, row))),)) for index, row in enumerate(rows)
    ]
    rng = np.random.default_rng(1)
    objective = Pareto(*(Maximize(f"goal{number}") for number in range(goals)))
    context = Context(space=SPACE, objective=objective, rng=rng, now=0.0, history=NO_HISTORY)
    ranks: list[float] = []
    distances: list[float] = []
    truncation: list[float] = []
    tournament: list[float] = []
    front = rows[front_ranks(rows) == 0]
    for _ in range(rounds):
        timed(partial(front_ranks, rows), ranks)
        timed(partial(crowding, rows, front_ranks(rows)), distances)
        one = population[int(rng.integers(size))]
        timed(partial(ParetoTruncation().choose, one, population, context), truncation)
        timed(partial(ParetoTournament().choose, one, population, context), tournament)
    thinning: list[float] = []
    timed(partial(thinned, front, max(1, len(front) // 2)), thinning)
    return {
        "on_the_front": len(front),
        "fronts_ms": quantile(ranks, 0.5),
        "crowding_of_all_ms": quantile(distances, 0.5),
        "truncation_median_ms": quantile(truncation, 0.5),
        "truncation_longest_ms": quantile(truncation, 1),
        "tournament_median_ms": quantile(tournament, 0.5),
        "tournament_longest_ms": quantile(tournament, 1),
        "halving_the_front_ms": quantile(thinning, 1),
    }


def rules(size: int, goals: int, *, tournament: bool = False) -> TrainRules:
    return TrainRules(
        space=SPACE,
        objective=Pareto(*(Maximize(f"goal{number}") for number in range(goals))),
        strategy=PBT(
            population_size=size,
            steps_per_trial=STEPS,
            total_steps=10**9,
            exploit=ParetoTournament() if tournament else ParetoTruncation(),
        ),
    )


def on_disk(folder: Path, size: int, rounds: int, *, tournament: bool) -> dict[str, float]:
    """Return what claims and completions take on SQLite, reading all members included."""
    store = open_store(f"sqlite:///{folder}/{size}{tournament}.db")
    study = store.create_study("bench", {}, 1, size)
    controller = Controller(store, study.id, rules(size, 2, tournament=tournament))
    fill(controller, store, study.id, vectors(size, 2))
    claims: list[float] = []
    completions: list[float] = []
    collecting: list[float] = []
    rng = np.random.default_rng(2)
    for _ in range(rounds):
        claimed = timed(partial(controller.claim, "bench"), claims)[0][0]
        trial = claimed.trial
        metrics = {"goal0": float(rng.random()), "goal1": float(rng.random())}
        done = Completion(
            trial=trial.id,
            token=trial.token,
            reached_step=trial.end_step,
            values={name: [value] for name, value in metrics.items()},
            metrics=metrics,
            checkpoint=checkpoint(trial.id, f"{trial.id}.1", study.id),
        )
        timed(partial(controller.complete, [done]), completions)
    timed(controller.retention, collecting)
    store.close()
    return {
        "claim_median_ms": quantile(claims, 0.5),
        "claim_p99_ms": quantile(claims, 0.99),
        "complete_median_ms": quantile(completions, 0.5),
        "retention_ms": quantile(collecting, 1),
    }


def checkpoint(trial: int, name: str, study: int) -> Checkpoint:
    return Checkpoint(name=name, study=study, trial=trial, step=STEPS, identity="", size_bytes=1, created_at=1.0)


def fill(controller: Controller, store: Any, study: int, rows: np.ndarray) -> None:
    """Give every member a completed trial."""
    with store.transaction(study, exclusive=True) as tx:
        for index, row in enumerate(rows):
            trial = tx.new_job_id()
            one = replace(scored(index, tuple(map(float, row))), trial=trial, checkpoint=f"{trial}.1")
            record = TrialRecord(
                id=trial,
                study=study,
                member=index,
                generation=0,
                state=JobState.COMPLETED,
                params=one.params,
                start_step=0,
                end_step=STEPS,
                reached_step=STEPS,
                seed=1,
                token=1,
                fitness=one.fitness,
                order=one.order,
                criteria=one.criteria,
                checkpoint=one.checkpoint,
                created_at=1.0,
                ended_at=2.0,
            )
            ready = replace(member(index), study=study, head=one, states=(one,))
            tx.apply(
                [
                    Insert(record),
                    Insert(checkpoint(trial, one.checkpoint, study)),
                    Update(ready),
                ]
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "pareto.json")
    options = parser.parse_args()
    rounds = 10 if options.quick else 100
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        found["machine"] = facts(Path(name))
        for size, goals in ((100, 2), (1_000, 2), (10_000, 2), (1_000, 3), (10_000, 3)):
            found[f"{size} members, {goals} goals"] = in_memory(size, goals, 3 if goals > 2 else rounds)
        for tournament in (False, True):
            rule = "tournament" if tournament else "truncation"
            found[f"10000 members on SQLite, {rule}"] = on_disk(Path(name), 10_000, rounds, tournament=tournament)
    for title, numbers in found.items():
        print(title)
        for key, value in numbers.items():
            print(f"    {key:<24} {value}")
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
