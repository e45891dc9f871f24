"""A study file for tests of durability: weights are the chain of trials that made them.

Run as a program; options come as JSON in the first argument:
home, members, trials, workers, lease_s, sleep_s, quorum, and anything that phyla.Study takes.
"""

import json
import sys
import time
from typing import Any

import phyla

STEPS = 4


def train(trial: phyla.Trial) -> None:
    """Append this trial to the chain of trials that the parent's weights hold."""
    options = json.loads(trial.worker["options"])
    chain = json.loads((trial.source.path / "chain.json").read_text()) if trial.source else []
    for _ in trial.steps():
        time.sleep(options.get("sleep_s", 0) / STEPS)
    chain.append([trial.id, trial.token])
    (trial.checkpoint_dir / "chain.json").write_text(json.dumps(chain))
    (trial.checkpoint_dir / "nested").mkdir()
    (trial.checkpoint_dir / "nested" / "data.bin").write_bytes(bytes(trial.seed % 5000))
    (trial.checkpoint_dir / "score.json").write_text(json.dumps(score(trial.seed, trial.params["lr"])))
    trial.report(score=score(trial.seed, trial.params["lr"]))


def score(seed: int, lr: float) -> float:
    """A noisy fitness that can be computed again."""
    return lr + (seed % 1000) / 500


# Tests kill workers at random: three that die on one shard are no reason to go on without a score.
@phyla.eval_task(shards=2, samples=2, max_attempts=1000)
def read(evaluation: phyla.Evaluation) -> None:
    """Read the score that training left in the checkpoint."""
    found = json.loads((evaluation.checkpoint.path / "score.json").read_text())
    evaluation.save(score=[found])
    evaluation.record(score=found)


@phyla.eval_task(max_attempts=1000)
def count(evaluation: phyla.Evaluation) -> None:
    """Count the trials that made the weights."""
    evaluation.record(length=len(json.loads((evaluation.checkpoint.path / "chain.json").read_text())))


SUITE = phyla.Suite("read", (read, count), objective=phyla.Maximize("score_mean"))


def setup(worker: phyla.WorkerContext) -> dict[str, str]:
    """Remember the options, which are not in the environment of the worker."""
    from pathlib import Path

    return {"options": (Path(worker.working_dir).parents[2] / "options.json").read_text()}


def main() -> None:
    """Run the study that the options describe."""
    from pathlib import Path

    options: dict[str, Any] = json.loads(sys.argv[1])
    home = Path(options.pop("home"))
    home.mkdir(parents=True, exist_ok=True)
    (home / "options.json").write_text(json.dumps(options))
    workers = options.pop("workers", 0)
    options.pop("sleep_s", None)
    evaluators, lease_s = options.pop("evaluators", 0), options.pop("lease_s", 60.0)
    members, trials = options.pop("members", 4), options.pop("trials", 6)
    more: dict[str, Any] = {"quorum": options.pop("quorum", 0.8)}
    if options.pop("evaluated", False):
        options["suites"] = [SUITE]
        more["fitness"] = phyla.FromSuite("read", "score_mean", max_lag=1, remeasure=1)
    options["retries"] = phyla.Retries(attempts=1000, broken=1000)
    study = phyla.Study(
        name="toy",
        space=phyla.Space(lr=phyla.Float(0.01, 1.0, log=True)),
        objective=phyla.Maximize("score"),
        strategy=phyla.PBT(
            population_size=members,
            steps_per_trial=STEPS,
            total_steps=STEPS * trials,
            exploit=phyla.Truncation(0.3),
            **more,
        ),
        train=train,
        setup=setup,
        home=home,
        **options,
    )
    study.run(workers=workers, evaluators=evaluators, lease_s=lease_s)


if __name__ == "__main__":
    main()
