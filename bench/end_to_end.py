"""End to end: short trials of the toy on worker processes, everything flushed, against a floor.

The study is the toy of Jaderberg et al. 2017, figure 2, with a population of 20 and 50 trials per member. Each
trial loads its parent's checkpoint, trains 5 steps, saves a checkpoint (files and directories flushed), and is
claimed and completed in SQLite with synchronous=FULL.

The floor does the least that such a trial cannot do without: two bare processes, each writing and flushing one
small file and committing one fully synchronous SQLite transaction, as often as there are trials.
"""

import argparse
import json
import multiprocessing
import os
import sqlite3
import statistics
import tempfile
import time
from pathlib import Path

import phyla
from machine import facts

POPULATION, TRIALS, STEPS, WORKERS = 20, 50, 5, 2


def train(trial: phyla.Trial) -> None:
    """Ascend the toy's surrogate."""
    theta = json.loads((trial.source.path / "theta.json").read_text()) if trial.source else [0.9, 0.9]
    h = trial.params["h0"], trial.params["h1"]
    for _ in trial.steps():
        theta = [t - 0.1 * w * t for t, w in zip(theta, h, strict=True)]
    (trial.checkpoint_dir / "theta.json").write_text(json.dumps(theta))
    trial.report(Q=1.2 - 0.75 * theta[0] ** 2 - theta[1] ** 2)


def study(home: Path) -> tuple[float, float]:
    """Return the wall time of the whole run, and from the first claim to the last completion."""
    toy = phyla.Study(
        name="toy",
        space=phyla.Space(h0=phyla.Float(0.0, 1.0), h1=phyla.Float(0.0, 1.0)),
        objective=phyla.Maximize("Q"),
        strategy=phyla.PBT(
            population_size=POPULATION,
            steps_per_trial=STEPS,
            total_steps=STEPS * TRIALS,
            exploit=phyla.Truncation(0.25),
            explore=phyla.Perturb(resample=0.25),
        ),
        train=train,
        home=home,
    )
    started = time.perf_counter()
    results = toy.run(workers=WORKERS)
    wall = time.perf_counter() - started
    attempts = results.attempts()
    assert results.counts() == {"completed": POPULATION * TRIALS}
    busy = max(a.ended_at or 0.0 for a in attempts) - min(a.claimed_at for a in attempts)
    return wall, busy


def bare(folder: str, index: int, count: int) -> None:
    """Do a bare process's share of the floor."""
    path = Path(folder)
    database = sqlite3.connect(path / "floor.db", isolation_level=None, timeout=30)
    database.execute("PRAGMA synchronous=FULL")
    for i in range(count):
        descriptor = os.open(path / f"{index}-{i}", os.O_CREAT | os.O_WRONLY)
        os.write(descriptor, b"x" * 50)
        os.fsync(descriptor)
        os.close(descriptor)
        database.execute("BEGIN IMMEDIATE")
        database.execute("INSERT INTO trials (text) VALUES ('x')")
        database.execute("COMMIT")


def floor(folder: Path) -> float:
    """Return the wall time of the floor, processes started beforehand not counted."""
    database = sqlite3.connect(folder / "floor.db")
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("CREATE TABLE trials (id INTEGER PRIMARY KEY, text)")
    database.commit()
    count = POPULATION * TRIALS // WORKERS
    processes = [multiprocessing.Process(target=bare, args=(str(folder), i, count)) for i in range(WORKERS)]
    started = time.perf_counter()
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return time.perf_counter() - started


def main() -> None:
    """Print the table and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--where", type=Path, default=Path.cwd(), help="a folder on the disk to measure")
    parser.add_argument("--out", type=Path, default=Path("bench/results/end_to_end.json"))
    options = parser.parse_args()
    total = POPULATION * TRIALS
    rows = []
    for _ in range(options.repeats):
        with tempfile.TemporaryDirectory(dir=options.where) as folder:
            wall, busy = study(Path(folder) / "home")
            floor_s = floor(Path(folder))
        rows.append({"run": total / wall, "steady": total / busy, "floor": total / floor_s})
        print("  ".join(f"{name} {rate:7.0f}/s" for name, rate in rows[-1].items()), flush=True)
    median = {name: statistics.median(row[name] for row in rows) for name in rows[0]}
    ratio = statistics.median(row["steady"] / row["floor"] for row in rows)
    whole = statistics.median(row["run"] / row["floor"] for row in rows)
    print(f"\n{'trials a second, median':<44}{'measured':>10}{'wanted':>10}")
    print(f"{'first claim to last completion':<44}{median['steady']:>10.0f}{400:>10}")
    print(f"{'whole study.run(), start of workers included':<44}{median['run']:>10.0f}")
    print(f"{'floor':<44}{median['floor']:>10.0f}")
    print(f"{'ratio to the floor':<44}{ratio:>10.2f}{0.3:>10}")
    print(f"{'ratio to the floor, whole study.run()':<44}{whole:>10.2f}")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(
        json.dumps({"machine": facts(options.where), "rows": rows, "median": median, "ratio": ratio}, indent=2)
    )


if __name__ == "__main__":
    main()
