"""Continuous evaluation end to end: how soon, how parallel, how much on top.

Run from the repository: `python bench/evaluation.py`. Everything runs on real worker processes and SQLite with
`synchronous=FULL`.

- *Latency*: a study with one worker that trains and one that is idle and only evaluates; the time from the
  transaction that commits a checkpoint to the start of its first eval task on the idle worker.
- *Scaling*: 20 eval tasks that each keep a core busy, on one checkpoint, with one worker and with two; beside it
  the same work in bare processes, which shows what two cores of this machine give at best.
- *Overhead*: 20 eval tasks that do nothing, on many checkpoints, on one worker: time per eval task, aggregations
  included.
"""

import argparse
import json
import multiprocessing
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median, quantiles

import phyla
from machine import facts
from phyla.store import open_store

TASKS = 20
BUSY_S = 0.4
LATENCY_MS, SPEED_UP, OVERHEAD_MS = 100.0, 1.9, 5.0


def train(trial: phyla.Trial) -> None:
    """Train for a moment, so that the evaluator falls idle in between."""
    time.sleep(0.2)
    # Of equal content nothing would be evaluated twice.
    (trial.checkpoint_dir / "id.txt").write_text(str(trial.id))


def started(evaluation: phyla.Evaluation) -> None:
    """Record when it was started."""
    evaluation.record(at=time.time())


def spin(loops: int) -> int:
    """Keep a core busy."""
    total = 0
    for index in range(loops):
        total += index * index
    return total


def busy(evaluation: phyla.Evaluation) -> None:
    """Keep a core busy, always with the same work."""
    evaluation.record(total=float(spin(int(evaluation.config["loops"]))))


def nothing(evaluation: phyla.Evaluation) -> None:
    """Record a number."""
    evaluation.record(x=1.0)


def loops_for(seconds: float) -> int:
    """Return how many loops take about so long on this machine, now."""
    began = time.perf_counter()
    spin(1_000_000)
    return int(1_000_000 * seconds / (time.perf_counter() - began))


def latency(folder: Path, trials: int) -> list[float]:
    """Return the milliseconds from each commit to the start of its evaluation."""
    study = phyla.Study(
        name="latency",
        space=phyla.Space(x=phyla.Float(0.0, 1.0)),
        objective=phyla.Maximize("at"),
        strategy=phyla.PBT(
            population_size=1,
            steps_per_trial=1,
            total_steps=trials,
            exploit=None,
            fitness=phyla.FromSuite("timing", "at_mean", max_lag=trials),
        ),
        train=train,
        suites=[phyla.Suite("timing", (phyla.EvalTask("started", started),))],
        home=folder,
    )
    results = study.run(workers=1, kinds=["train"], evaluators=1)
    pairs = [(trial.fitness, trial.ended_at) for trial in results.trials()]
    return [1000 * (at - ended) for at, ended in pairs[1:] if at is not None and ended is not None]


def suite_of(evaluate: Callable[[phyla.Evaluation], None], **config: int) -> phyla.Suite:
    """Return a suite of twenty eval tasks of one function."""
    return phyla.Suite("bench", tuple(phyla.EvalTask(f"t{i}", evaluate, config=config) for i in range(TASKS)))


def checkpoints(folder: Path, count: int) -> Path:
    """Write checkpoints as a training job would have left them, and say that it is done."""
    root = folder / "checkpoints"
    for step in range(count):
        path = root / f"step-{step}"
        path.mkdir(parents=True)
        (path / "weights.bin").write_text(str(path))
        (path / "READY").touch()
    return root


def evaluated(folder: Path, suite: phyla.Suite, *, count: int, workers: int) -> float:
    """Return the seconds from the first claim to the last answer, start of the workers not counted."""
    home = folder / "home"
    phyla.watch(
        checkpoints(folder, count),
        suite,
        workers,
        name="bench",
        home=home,
        format="marker",
        options={"marker": "READY"},
        following=phyla.Following(once=True),
    )
    store = open_store(f"sqlite:///{home / 'phyla.db'}")
    run = store.find_study("bench")
    assert run is not None
    with store.reader(run.id) as reader:
        tasks = reader.eval_jobs()
    store.close()
    assert len(tasks) == count * (TASKS + 1), "each eval task and one aggregation"
    return max(task.ended_at or 0.0 for task in tasks) - min(task.started_at or 0.0 for task in tasks)


def bare(processes: int, loops: int) -> float:
    """Return how long as many bare processes take for the same work."""
    began = time.perf_counter()
    with multiprocessing.Pool(processes) as pool:
        pool.map(spin, [loops] * processes)
        began = time.perf_counter()
        pool.map(spin, [loops] * TASKS, chunksize=1)
        return time.perf_counter() - began


def main() -> None:
    """Print the table and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--checkpoints", type=int, default=50)
    parser.add_argument("--where", type=Path, default=Path.cwd(), help="a folder on the disk to measure")
    parser.add_argument("--out", type=Path, default=Path("bench/results/evaluation.json"))
    options = parser.parse_args()
    speed_ups, floors, overheads = [], [], []
    with tempfile.TemporaryDirectory(dir=options.where) as name:
        folder = Path(name)
        late_ms = latency(folder / "latency", options.trials)
        for turn in range(options.repeats):
            loops = loops_for(BUSY_S)
            heavy = suite_of(busy, loops=loops)
            one = evaluated(folder / f"one-{turn}", heavy, count=1, workers=1)
            two = evaluated(folder / f"two-{turn}", heavy, count=1, workers=2)
            speed_ups.append(one / two)
            floors.append(bare(1, loops) / bare(2, loops))
            light = suite_of(nothing)
            took = evaluated(folder / f"light-{turn}", light, count=options.checkpoints, workers=1)
            overheads.append(1000 * took / (TASKS * options.checkpoints))
        machine = facts(options.where)
    print(f"{'':<58}{'measured':>10}{'wanted':>10}")
    print(
        f"{'commit to first eval task on an idle worker, median, ms':<58}{median(late_ms):>10.1f}{LATENCY_MS:>10}"
    )
    print(f"{'  90th percentile':<58}{quantiles(late_ms, n=10)[8]:>10.1f}")
    print(f"{'20 busy eval tasks, 2 workers against 1, median':<58}{median(speed_ups):>10.2f}{SPEED_UP:>10}")
    print(f"{'  bare processes, 2 against 1':<58}{median(floors):>10.2f}")
    print(f"{'per eval task that does nothing, ms, median':<58}{median(overheads):>10.2f}{OVERHEAD_MS:>10}")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "machine": machine,
        "latency_ms": late_ms,
        "speed_up": speed_ups,
        "speed_up_bare": floors,
        "overhead_ms": overheads,
    }
    options.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
