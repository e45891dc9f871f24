"""A study file for tests of faults: weights are the chain of trials that made them, and every trial checks them.

Run as a program; options come as JSON in the first argument: home, members, trials, workers, evaluators, lease_s,
sleep_s, quorum, evaluated (True, or "beside": by a suite whose score does not count), saves_progress, scratch,
witness (a file to which every trial appends what it loaded), and anything that phyla.Study takes.
"""

import hashlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import phyla
from phyla.errors import PhylaError

STEPS = 4
VARIABLE = "TOY_STUDY"
"""Of the environment; holds the options for workers."""
Chain = list[list[Any]]
"""Of each trial: its id, its token, its seed, its only hyperparameter."""


def train(trial: phyla.Trial) -> None:
    """Load and check the weights, take a while, add a link, save."""
    options = json.loads(os.environ.get(VARIABLE, "{}"))
    file = options.get("witness", os.devnull)
    chain: Chain = []
    if trial.source is not None:
        try:
            chain = load(trial.source.path)
        except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError) as error:
            wrong = f"{type(error).__name__}: {error}"
            witness(file, trial, wrong)
            raise ValueError(f"the weights in {trial.source.path} are not what was saved: {wrong}") from error
    witness(file, trial)
    chain = [link for link in chain if link[0] != trial.id]
    chain.append([trial.id, trial.token, trial.seed, trial.params["lr"]])
    for step in trial.steps():
        time.sleep(options.get("sleep_s", 0) / STEPS)
        if options.get("saves_progress") and step == trial.start_step + 1:
            save(chain, trial.checkpoint_dir)
            trial.save_progress()
    if options.get("scratch"):
        with (trial.working_dir / "log.txt").open("a") as log:
            log.write(f"trial {trial.id}\n")
    save(chain, trial.checkpoint_dir)
    trial.report(score=score(trial.seed, trial.params["lr"]))


def witness(file: str, trial: phyla.Trial, wrong: str | None = None) -> None:
    """Write down what a trial loaded."""
    line = {
        "pid": os.getpid(),
        "trial": trial.id,
        "token": trial.token,
        "source": None if trial.source is None else trial.source.name,
        "wrong": wrong,
        "at": time.time(),
    }
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(descriptor, json.dumps(line).encode() + b"\n")
    os.close(descriptor)


def score(seed: int, lr: Any) -> float:
    """A noisy fitness that can be computed again."""
    return float(lr) + (seed % 1000) / 500


def save(chain: Chain, folder: Path) -> None:
    """Write weights: the chain, and files whose content follows from it."""
    (folder / "chain.json").write_text(json.dumps(chain))
    for name, content in files_of(chain).items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)


def load(folder: Path) -> Chain:
    """Read weights back.

    Raises:
        ValueError: they are not what was saved.
    """
    chain: Chain = json.loads((folder / "chain.json").read_bytes())
    for name, content in files_of(chain).items():
        if (folder / name).read_bytes() != content:
            raise ValueError(f"{name} does not belong to this chain")
    return chain


def files_of(chain: Chain) -> dict[str, bytes]:
    """Return the files that belong to a chain: small ones, sometimes many, and one of some kilobytes."""
    digest = hashlib.sha256(json.dumps(chain).encode()).digest()
    count = 12 if digest[0] < 32 else 1
    return {
        "weights.bin": digest * (1 + 4 * digest[1]),
        **{f"layers/{number}.bin": digest[: 1 + number] * digest[2] for number in range(count)},
    }


# Tests kill workers at random: three that die on one shard are no reason to go on without a score.
@phyla.eval_task(shards=2, samples=2, max_attempts=1000)
def read(evaluation: phyla.Evaluation) -> None:
    """Compute the score again from the weights."""
    *_, (_, _, seed, lr) = load(evaluation.checkpoint.path)
    evaluation.save(score=[score(seed, lr)])
    evaluation.record(score=score(seed, lr))


@phyla.eval_task(max_attempts=1000)
def count(evaluation: phyla.Evaluation) -> None:
    """Count the trials that made the weights."""
    evaluation.record(length=len(load(evaluation.checkpoint.path)))


SUITE = phyla.Suite("read", (read, count), objective=phyla.Maximize("score_mean"))


def setup(worker: phyla.WorkerContext) -> None:
    """Write into the directory of the worker."""
    (worker.working_dir / "setup").write_text(worker.name)


def main() -> None:
    """Run the study that the options describe; print an error of phyla as a user reads it."""
    try:
        run(json.loads(sys.argv[1]))
    except PhylaError as error:
        print(f"error: {type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(1)


def run(options: dict[str, Any]) -> None:
    """Run the study that the options describe."""
    os.environ[VARIABLE] = json.dumps(options)
    for name in ("sleep_s", "saves_progress", "witness"):
        options.pop(name, None)
    how: dict[str, Any] = {"workers": 0, "evaluators": 0, "lease_s": 60.0, "grace_s": None}
    how = {name: options.pop(name, usual) for name, usual in how.items()}
    members, trials, evaluated = (options.pop(name, 0) for name in ("members", "trials", "evaluated"))
    more: dict[str, Any] = {"quorum": options.pop("quorum", 0.8)}
    if evaluated:
        options["suites"] = [SUITE]
    if evaluated is True:
        more["fitness"] = phyla.FromSuite("read", "score_mean", max_lag=1, remeasure=1)
    options["retries"] = phyla.Retries(**options.pop("retries", {"attempts": 1000, "broken": 1000}))
    study = phyla.Study(
        name="toy",
        space=phyla.Space(lr=phyla.Float(0.01, 1.0, log=True)),
        objective=phyla.Maximize("score"),
        strategy=phyla.PBT(
            population_size=members or 4,
            steps_per_trial=STEPS,
            total_steps=STEPS * (trials or 6),
            exploit=phyla.Truncation(0.3),
            **more,
        ),
        train=train,
        setup=setup if options.pop("scratch", False) else None,
        **options,
    )
    study.run(**how)


if __name__ == "__main__":
    main()
