"""How soon a waiting worker starts once the trial that it waited for has completed.

Run from the repository: `python bench/wake.py`. A population of 3 with quorum 1.0 on 3 workers: one member is
slow, so at each of its completions the other two workers wait for it. What is measured is the time from that
completion, as the store noted it, to the first claim that follows. On SQLite, and on PostgreSQL where a URL is
given.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import phyla
from machine import facts

SLOW_S, TRIALS = 0.25, 30


def train(trial: phyla.Trial) -> None:
    """Take its time, if it is the slow one."""
    time.sleep(SLOW_S if trial.member == 0 else 0.01)
    (trial.checkpoint_dir / "weights").write_text(str(trial.end_step))
    trial.report(score=1.0)


def waits(home: Path, storage: str | None) -> list[float]:
    """Return the milliseconds from each completion of the slow member to the next claim."""
    study = phyla.Study(
        name=f"wake-{time.time_ns()}",
        space=phyla.Space(rate=phyla.Float(0.0, 1.0)),
        objective=phyla.Maximize("score"),
        strategy=phyla.PBT(population_size=3, steps_per_trial=1, total_steps=TRIALS, quorum=1.0),
        train=train,
        home=home,
        storage=storage,
    )
    results = study.run(workers=3)
    members = {trial.id: trial.member for trial in results.trials()}
    attempts = sorted(results.attempts(), key=lambda attempt: attempt.claimed_at)
    ended = [a for a in attempts if members[a.job] == 0 and a.ended_at is not None][:-1]
    found = []
    for one in ended:
        # The worker that completes it claims in the same transaction.
        others = [
            a.claimed_at for a in attempts if a.worker != one.worker and a.claimed_at >= (one.ended_at or 0.0)
        ]
        if others:
            found.append((others[0] - (one.ended_at or 0.0)) * 1e3)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--postgres", metavar="URL", help="also measure on this server")
    parser.add_argument("--where", type=Path, default=Path.cwd(), help="a folder on the disk to measure")
    parser.add_argument("--out", type=Path, default=Path("bench/results/wake.json"))
    arguments = parser.parse_args()
    found: dict[str, Any] = {"machine": facts(arguments.where)}
    print(
        f"{'store':12} {'median':>8} {'p95':>8} {'most':>8}   ms from a completion to the claim that waited for it"
    )
    for name, storage in (("sqlite", None), ("postgresql", arguments.postgres)):
        if name == "postgresql" and storage is None:
            continue
        with tempfile.TemporaryDirectory(dir=arguments.where) as folder:
            took = sorted(waits(Path(folder), storage))
        row = {"median": statistics.median(took), "p95": took[int(len(took) * 0.95)], "most": took[-1]}
        found[name] = row
        print(f"{name:12} {row['median']:8.1f} {row['p95']:8.1f} {row['most']:8.1f}")
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
