"""What claiming and handing in an eval task costs, beside a short ledger and beside one of a million results.

Run from the repository: `python bench/ledger.py`. Two SQLite files with `synchronous=FULL`: one with 1,000
results, one with 1,000,000 (and the checkpoints, groups and ended eval tasks they belong to). In both a worker
claims an eval task, hands its result in and claims the next, in turns, so that a slow moment of the machine hits
both.
"""

import argparse
import json
import shutil
import tempfile
import time
from pathlib import Path
from statistics import median, quantiles

import sqlalchemy as sa

from machine import facts
from phyla.controller import EVALUATE_ONLY, Controller, Sightings
from phyla.evaluation import EvalTask, Moments, Suite
from phyla.evaluation.recorder import encode
from phyla.machine import ClaimedEvaluation, Evaluated, WatchRules, Work
from phyla.records import Checkpoint, CheckpointKind, EvalResult, StudyKind
from phyla.store import open_store

TASKS = 10
WANTED = 1.5


def nothing(_evaluation: object) -> None:
    """Stand in for evaluation code, which is not what is measured."""


SUITE = Suite("bench", tuple(EvalTask(f"task-{index}", nothing) for index in range(TASKS)))
STATISTICS = {"loss": encode(Moments.of([0.1, 0.2, 0.3]), str)}


def fill(path: Path, results: int) -> None:
    """Insert a history as it would be after all was evaluated: ten results a checkpoint."""
    checkpoints = results // TASKS
    engine = sa.create_engine(f"sqlite:///{path}")
    numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :last)"
    identities = {str(index): task.identity for index, task in enumerate(SUITE.tasks)}
    with engine.begin() as connection:
        connection.exec_driver_sql("PRAGMA synchronous=OFF")
        connection.exec_driver_sql("PRAGMA foreign_keys=OFF")

        def run(statement: str, **values: object) -> None:
            connection.execute(sa.text(statement), {"last": checkpoints, **values})

        run(
            "INSERT INTO checkpoints (id, study, number, name, place, kind, step, branch, state, identity, weak, "
            "fingerprint, path, paths, snapshot, size_bytes, taken, created_at, written_at) "
            f"{numbers} SELECT i, 1, i - 1, 'old-' || i, 0, 'seen', i, 0, 'ready', 'old-' || i, 1, 'f' || i, "
            "'/old/' || i, '[]', 0, 1, 0, 1.0 * i, 1.0 * i FROM n"
        )
        run(
            "INSERT INTO eval_groups (id, study, suite, seen, replicate, state, priority, rank, started, best, "
            f"aggregates, created_at, not_before, ended_at) {numbers} "
            "SELECT i, 1, 'bench', i, 0, 'complete', 1, -i, 1, 0, '{}', 1.0 * i, 0, 1.0 * i FROM n"
        )
        for task in range(TASKS):
            run(
                "INSERT INTO jobs (study, group_id, seen, task, kind, identity, replicate, shard, shards, "
                "state, priority, rank, not_before, token, failures, max_attempts, reused, worker, created_at, "
                f"started_at, ended_at) {numbers} SELECT 1, i, i, :task, 'evaluate', :identity, 0, 0, 1, "
                "'completed', 1, -i, 0, 1, 0, 3, 0, 'w', 1.0 * i, 1.0 * i, 1.0 * i FROM n",
                task=f"task-{task}",
                identity=identities[str(task)],
            )
            run(
                "INSERT INTO eval_results (identity, task_identity, replicate, shard, shards, study, statistics, "
                f"files, source, duration_s, worker, created_at) {numbers} SELECT 'old-' || i, :identity, "
                "0, 0, 1, 1, :statistics, '{}', '', 0.1, 'w', 1.0 * i FROM n",
                identity=identities[str(task)],
                statistics=json.dumps(STATISTICS),
            )
    engine.dispose()


def _evaluation(work: Work) -> ClaimedEvaluation:
    assert isinstance(work, ClaimedEvaluation)
    return work


class Bench:
    """One ledger and one worker."""

    def __init__(self, folder: Path, results: int) -> None:
        self.results = results
        path = folder / f"{results}.db"
        self.store = open_store(f"sqlite:///{path}")
        self.run = self.store.create_study("run", {}, kind=StudyKind.DIRECTORY, location="/data")
        fill(path, results)
        self.controller = Controller(self.store, self.run.id, WatchRules(suites=(SUITE,)))
        self.sightings = Sightings(self.store, self.run, [SUITE])
        self.seen = 0
        self.work: ClaimedEvaluation | None = None
        self.claim_s: list[float] = []
        self.both_s: list[float] = []

    def checkpoints(self, count: int) -> None:
        """Let new checkpoints come."""
        found = []
        for _ in range(count):
            self.seen += 1
            found.append(
                Checkpoint(
                    study=1,
                    kind=CheckpointKind.SEEN,
                    name=f"new-{self.seen}",
                    step=10_000_000 + self.seen,
                    identity=f"new-{self.seen}",
                    fingerprint=f"g{self.seen}",
                    path=f"/data/{self.seen}",
                    written_at=1e9 + self.seen,
                )
            )
        self.sightings.observe(found)

    def turn(self) -> None:
        """Claim one eval task; then hand it in and claim the next, in one transaction."""
        began = time.perf_counter()
        _, (first,), _ = self.controller.complete((), "w", 1, kinds=EVALUATE_ONLY)
        self.claim_s.append(time.perf_counter() - began)
        began = time.perf_counter()
        _, (second,), _ = self.controller.complete([self.done(_evaluation(first))], "w", 1, kinds=EVALUATE_ONLY)
        self.both_s.append(time.perf_counter() - began)
        self.controller.complete([self.done(_evaluation(second))])

    def done(self, work: ClaimedEvaluation) -> Evaluated:
        """Return the result of an eval task, or the aggregates of a group."""
        if not work.job.task:
            values = {"loss_mean": {"value": 0.2, "stderr": 0.05}}
            return Evaluated(job=work.job.id, group=work.job.group, token=work.job.token, values=values)
        result = EvalResult(
            identity=work.seen.identity,
            task_identity=work.job.identity,
            study=work.job.study,
            statistics=STATISTICS,
            duration_s=0.1,
            worker="w",
            created_at=0.0,
        )
        return Evaluated(job=work.job.id, group=work.job.group, token=work.job.token, result=result)


def main() -> None:
    """Print the table and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=int, default=1_000_000)
    parser.add_argument("--turns", type=int, default=500)
    parser.add_argument("--folder", type=Path, default=None, help="measure on this file system")
    parser.add_argument("--out", type=Path, default=Path("bench/results/ledger.json"))
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="phyla-bench-", dir=options.folder))
    try:
        machine = facts(folder)
        short, long = Bench(folder, 1000), Bench(folder, options.results)
        for bench in (short, long):
            bench.checkpoints(options.turns)
        for _ in range(options.turns):
            short.turn()
            long.turn()
        size_mib = (folder / f"{options.results}.db").stat().st_size / 2**20
    finally:
        shutil.rmtree(folder)
    rows = {}
    print(f"{'ms':<28}{'1,000 results':>16}{f'{options.results:,} results':>20}{'ratio':>8}{'wanted':>8}")
    for name in ("claim_s", "both_s"):
        few, many = getattr(short, name), getattr(long, name)
        ratio = median(many) / median(few)
        label = "claim" if name == "claim_s" else "hand in and claim"
        print(f"{label:<28}{1000 * median(few):>16.3f}{1000 * median(many):>20.3f}{ratio:>8.2f}{WANTED:>8}")
        worst = [1000 * quantiles(values, n=100)[98] for values in (few, many)]
        print(f"{'  99th percentile':<28}{worst[0]:>16.3f}{worst[1]:>20.3f}")
        rows[name] = {"few": few, "many": many, "ratio": ratio}
    print(f"size of the large file: {size_mib:.0f} MiB")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({"machine": machine, "results": options.results, **rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
