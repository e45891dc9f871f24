"""How long a claim and a completion take, and what long histories, large populations and crowds add.

Run: python bench/control_plane.py [--quick] [--output bench/results/control_plane.json]
"""

import argparse
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from machine import facts
from phyla.controller import Controller
from phyla.machine import Claimed, Completion, TrainRules
from phyla.records import Checkpoint, Maximize, Scored
from phyla.space import Float, Space
from phyla.store import Store, open_store
from phyla.store.sql.rows import MEMBERS, encode
from phyla.strategies import PBT, Perturb, Truncation

STEPS = 10
WARM_UP = 100
"""Rounds before the clock runs; long enough that a population of 20 has all its scores."""


def rules(size: int) -> TrainRules:
    return TrainRules(
        space=Space(rate=Float(1e-5, 1.0, log=True), momentum=Float(0.0, 1.0)),
        objective=Maximize("score"),
        strategy=PBT(
            population_size=size,
            steps_per_trial=STEPS,
            total_steps=10**9,
            exploit=Truncation(0.25),
            explore=Perturb(),
        ),
    )


def result(claimed: Claimed) -> Completion:
    trial = claimed.trial
    score = (trial.seed % 100_003) / 100_003
    return Completion(
        trial=trial.id,
        token=trial.token,
        reached_step=trial.end_step,
        values={"score": [score]},
        metrics={"score": score, "loss": 1 - score},
        checkpoint=Checkpoint(
            name=f"{trial.id}.{trial.token}",
            study=trial.study,
            trial=trial.id,
            step=trial.end_step,
            identity="0" * 64,
            size_bytes=1_000_000,
            created_at=trial.created_at,
        ),
    )


def timed(call: Callable[[], Any], into: list[float]) -> Any:
    begin = time.perf_counter()
    answer = call()
    into.append(time.perf_counter() - begin)
    return answer


def quantile(times: Sequence[float], share: float) -> float:
    """Return a quantile in milliseconds."""
    return round(sorted(times)[min(len(times) - 1, int(share * len(times)))] * 1e3, 4)


def warmed(controller: Controller) -> Controller:
    for _ in range(WARM_UP):
        controller.complete([result(controller.claim("bench")[0][0])])
    return controller


def measure(controller: Controller, rounds: int) -> dict[str, float]:
    warmed(controller)
    claims: list[float] = []
    completions: list[float] = []
    fused: list[float] = []
    for _ in range(rounds):
        done = result(timed(partial(controller.claim, "bench"), claims)[0][0])
        timed(partial(controller.complete, [done]), completions)
    claimed = controller.claim("bench")[0][0]
    for _ in range(rounds):
        answer = timed(partial(controller.complete, [result(claimed)], "bench", 1), fused)
        claimed = answer[1][0]
    controller.complete([result(claimed)])
    both = [claim + completion for claim, completion in zip(claims, completions, strict=True)]
    return {
        f"{name}_{label}_ms": quantile(times, share)
        for name, times in (("claim", claims), ("complete", completions), ("both", both), ("fused", fused))
        for label, share in (("median", 0.5), ("p99", 0.99))
    }


def flush(folder: Path, commits: int = 300) -> dict[str, float]:
    """Return what SQLite's commit of a single row costs here: the floor of every transaction."""
    connection = sqlite3.connect(folder / "flush.db", isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("CREATE TABLE IF NOT EXISTS t (x)")
    times: list[float] = []
    for number in range(commits):
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("INSERT INTO t VALUES (?)", (number,))
        timed(partial(connection.execute, "COMMIT"), times)
    connection.close()
    return {"median_ms": quantile(times, 0.5), "p99_ms": quantile(times, 0.99)}


def study_of(store: Store, size: int) -> Controller:
    study = store.create_study(f"bench-{size}", {}, 1, size)
    return Controller(store, study.id, rules(size))


def add_history(path: Path, trials: int) -> None:
    """Insert completed trials of the study's members, as many as asked for."""
    connection = sqlite3.connect(path)
    reason = encode({"decision": "continue", "compared": {"rule": "truncation", "rank": 5, "of": 20, "share": 5}})
    key = {"count": trials, "reason": reason, "params": encode({"rate": 0.0123456789, "momentum": 0.98765})}
    with connection:
        for statement in HISTORY:
            connection.execute(statement, key)
    connection.close()


NUMBERS = """
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :count),
b(base, size) AS (SELECT coalesce(max(t.id), 0), max(s.population_size) FROM jobs t, studies s)
"""
# Trials move `base`, so they come last; foreign keys are not enforced on this connection.
HISTORY = (
    f"""{NUMBERS} INSERT INTO attempts
    (job, token, study, worker, state, claimed_at, expires_at, ended_at, outcome, error)
    SELECT base + i, 1, 1, 'bench', 'completed', i, i + 60, i + 1, '{{"fitness":0.5}}', NULL FROM n, b""",
    f"""{NUMBERS} INSERT INTO checkpoints
    (study, name, place, number, kind, trial, state, step, branch, identity, weak, fingerprint, path, paths,
    snapshot, size_bytes, taken, created_at, written_at)
    SELECT 1, (base + i) || '.1', 0, -1, 'result', base + i, 'deleted', i, 0, printf('%064d', i), 0, '', '', '[]',
    0, 1000000, 1, i, i FROM n, b""",
    f"""{NUMBERS} INSERT INTO jobs
    (id, study, member, generation, kind, state, parent, parent_checkpoint, parent_index, jump_from, params_from,
    replaces, params, start_step, end_step, reached_step, seed, token, failures, progress, progress_step,
    exploited, fitness, fitness_order, metrics, checkpoint, checkpoint_index, reason, error, worker, created_at,
    started_at, ended_at, age)
    SELECT base + i, 1, i % size, i / size, 'train', 'completed', base + i - size, (base + i - size) || '.1', 0,
    NULL, base + i - size, NULL, :params, i, i + 10, i + 10, i, 1, 0, NULL, NULL, 0,
    (i * 7919 % 100003) / 100003.0, (i * 7919 % 100003) / 100003.0, '{{"score":0.5,"loss":0.5}}',
    (base + i) || '.1', 0, :reason, NULL, 'bench', i, i, i + 1, i FROM n, b""",
    "UPDATE members SET generation = generation + :count / (SELECT count(*) FROM members)",
)


def add_scores(path: Path, study: int, size: int) -> None:
    """Give every member a completed trial, so that a population is in its steady state at once."""
    connection = sqlite3.connect(path)
    rows = []
    for index in range(size):
        score = (index * 7919 % 100_003) / 100_003
        scored = Scored(
            trial=index + 1,
            member=index,
            checkpoint=f"{index + 1}.1",
            index=0,
            step=STEPS,
            params={"rate": 0.01, "momentum": 0.9},
            fitness=score,
            order=score,
            age=STEPS,
            progress=STEPS,
        )
        rows.append(
            {
                "id": scored.trial,
                "study": study,
                "member": index,
                "score": score,
                "name": scored.checkpoint,
                "scored": MEMBERS.write_values({"head": scored})["head"],
                "params": encode(scored.params),
            }
        )
    with connection:
        for statement in SCORES:
            connection.executemany(statement, rows)
    connection.close()


SCORES = (
    """INSERT INTO jobs (id, study, member, generation, kind, state, parent_index, params, start_step, end_step,
    reached_step, seed, token, failures, exploited, fitness, fitness_order, metrics, checkpoint, checkpoint_index,
    reason, created_at, ended_at, age)
    VALUES (:id, :study, :member, 0, 'train', 'completed', 0, :params, 0, 10, 10, 1, 1, 0, 0, :score, :score, '{}',
    :name, 0, '{}', 1, 2, 0)""",
    """INSERT INTO attempts (job, token, study, worker, state, claimed_at, expires_at, ended_at, timings)
    VALUES (:id, 1, :study, 'x', 'completed', 1, 61, 2, '{"loading":0.25,"training":0.75}')""",
    """INSERT INTO checkpoints (study, name, place, number, kind, trial, state, step, branch, identity, weak,
    fingerprint, path, paths, snapshot, size_bytes, taken, created_at, written_at)
    VALUES (:study, :name, 0, -1, 'result', :id, 'live', 10, 0, '', 0, '', '', '[]', 0, 1, 0, 2, 2)""",
    """UPDATE members SET progress = 10, generation = 1, head = :scored, states = '[' || :scored || ']'
    WHERE study = :study AND member = :member""",
)


def hammer(url: str, seconds: float) -> dict[str, float]:
    """Claim and complete without a pause; return how often and the longest single call."""
    store = open_store(url)
    controller = study_of(store, 100)
    worker = f"bench:{os.getpid()}"
    claims: list[float] = []
    completions: list[float] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        claimed = timed(lambda: controller.claim(worker), claims)[0][0]
        done = result(claimed)
        timed(partial(controller.complete, [done]), completions)
    store.close()
    calls = claims + completions
    return {"trials": len(completions), "longest_ms": quantile(calls, 1), "p99_ms": quantile(calls, 0.99)}


def crowd(folder: Path, processes: int, seconds: float) -> dict[str, float]:
    url = f"sqlite:///{folder}/crowd.db"
    store = open_store(url)
    study_of(store, 100)
    store.close()
    command = [sys.executable, __file__, "--hammer", url, str(seconds)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(processes)]
    answers = [json.loads(process.communicate()[0]) for process in running]
    return {
        "processes": processes,
        "trials_per_second": round(sum(answer["trials"] for answer in answers) / seconds, 1),
        "least_trials_of_one": min(answer["trials"] for answer in answers),
        "most_trials_of_one": max(answer["trials"] for answer in answers),
        "longest_call_ms": max(answer["longest_ms"] for answer in answers),
        "p99_call_ms": max(answer["p99_ms"] for answer in answers),
    }


def run(folder: Path, *, rounds: int, history: int, seconds: float) -> dict[str, Any]:
    small, long, large = folder / "small.db", folder / "long.db", folder / "large.db"
    for path, size in ((small, 20), (long, 20), (large, 10_000)):
        store = open_store(f"sqlite:///{path}")
        controller = study_of(store, size)
        if path == large:
            add_scores(large, 1, size)
        else:
            warmed(controller)
        store.close()
    add_history(long, history)
    os.sync()
    results: dict[str, Any] = {"bare_commit": flush(folder)}
    for title, path, size in (
        ("population_20", small, 20),
        (f"population_20_after_{history}_trials", long, 20),
        ("population_10000", large, 10_000),
    ):
        store = open_store(f"sqlite:///{path}")
        results[title] = measure(study_of(store, size), rounds)
        store.close()
    short, after, many = list(results.values())[1:]
    results["ratios"] = {
        f"after_{history}_trials": round(after["both_median_ms"] / short["both_median_ms"], 3),
        "population_10000": round(many["both_median_ms"] / short["both_median_ms"], 3),
    }
    results["crowd"] = crowd(folder, 8, seconds)
    results["bare_commit_at_the_end"] = flush(folder)
    return results


def show(results: dict[str, Any]) -> None:
    for title, numbers in results.items():
        print(title)
        for name, value in numbers.items():
            print(f"    {name:<24} {value}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smaller history and fewer rounds")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "control_plane.json")
    parser.add_argument("--folder", type=Path, help="where the databases go; a temporary folder unless named")
    parser.add_argument("--hammer", nargs=2, metavar=("URL", "SECONDS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.hammer:
        print(json.dumps(hammer(options.hammer[0], float(options.hammer[1]))))
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        results = run(
            Path(name),
            rounds=200 if options.quick else 1000,
            history=50_000 if options.quick else 1_000_000,
            seconds=2.0 if options.quick else 5.0,
        )
        found = {"machine": facts(Path(name)), **results}
    show(found)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
