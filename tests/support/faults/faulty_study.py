"""A study whose training finds out by itself whether weights are what was saved.

Run as a program; `FAULTY_STUDY` in the environment holds the options as JSON, see `main`. The weights are a chain
with one link for each trial that made them, and bytes that follow from the chain. Every trial that loads weights
says so, and what it found, in the file `witness`.
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
NAME = "faulty"
OPTIONS: dict[str, Any] = json.loads(os.environ.get("FAULTY_STUDY", "{}"))
Chain = list[list[Any]]


def train(trial: phyla.Trial) -> None:
    """Load and check the weights, take a few milliseconds, add a link, save."""
    source = trial.source
    chain: Chain = []
    wrong = None
    if source is not None:
        try:
            chain = load(source.path)
        except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError) as error:
            wrong = f"{type(error).__name__}: {error}"
    witness(trial, None if source is None else source.name, wrong)
    if wrong:
        raise ValueError(f"the weights in {source.path if source else None} are not what was saved: {wrong}")
    chain = [link for link in chain if link[0] != trial.id]
    link = [trial.id, trial.seed, trial.params["lr"]]
    for step in trial.steps():
        time.sleep(OPTIONS["trial_s"] / STEPS)
        if OPTIONS["saves_progress"] and step == trial.start_step + 1:
            save([*chain, link], trial.checkpoint_dir)
            trial.save_progress()
    if OPTIONS["scratch"]:
        with (trial.working_dir / "log.txt").open("a") as log:
            log.write(f"trial {trial.id}\n")
    save([*chain, link], trial.checkpoint_dir)
    trial.report(score=score(trial.seed, trial.params["lr"]))


def score(seed: int, lr: float) -> float:
    """A noisy fitness that can be computed again."""
    return lr + (seed % 1000) / 500


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
        "weights.bin": digest * (1 + 16 * digest[1]),
        **{f"layers/{number}.bin": digest[: 1 + number] * digest[2] for number in range(count)},
    }


def witness(trial: phyla.Trial | None, source: str | None, wrong: str | None) -> None:
    """Say what this trial, or an evaluation, loaded."""
    line = {
        "pid": os.getpid(),
        "trial": trial.id if trial else None,
        "token": trial.token if trial else None,
        "source": source,
        "wrong": wrong,
        "at": time.time(),
    }
    descriptor = os.open(OPTIONS["witness"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(descriptor, json.dumps(line).encode() + b"\n")
    os.close(descriptor)


def setup(worker: phyla.WorkerContext) -> None:
    """Write into the directory of the worker."""
    (worker.working_dir / "setup").write_text(worker.name)


@phyla.eval_task(shards=2, samples=2)
def read(evaluation: phyla.Evaluation) -> None:
    """Measure the length of the chain, after a look at all bytes; save an array."""
    chain = load(evaluation.checkpoint.path)
    witness(None, evaluation.checkpoint.path.name, None)
    evaluation.save(length=[len(chain)])
    evaluation.record(length=len(chain))


def study() -> phyla.Study:
    """Return the study that the options describe."""
    return phyla.Study(
        NAME,
        {"lr": phyla.Float(0.01, 1.0, log=True)},
        phyla.Maximize("score"),
        phyla.PBT(
            population_size=OPTIONS["members"],
            steps_per_trial=STEPS,
            total_steps=STEPS * OPTIONS["trials"],
            exploit=phyla.Truncation(0.3),
            quorum=OPTIONS["quorum"],
        ),
        train,
        setup=setup if OPTIONS["scratch"] else None,
        home=OPTIONS["home"],
        storage=OPTIONS["storage"],
        checkpoints=OPTIONS["checkpoints"],
        seed=OPTIONS["seed"],
        suites=[phyla.Suite("reads", [read])] if OPTIONS["evaluated"] else (),
    )


def main() -> None:
    """Run the study; print the error of a study that stops as one paragraph, which is what a user reads."""
    try:
        study().run(workers=OPTIONS["workers"], lease_s=OPTIONS["lease_s"])
    except PhylaError as error:
        print(f"STOPPED {type(error).__name__}: {error}")
        sys.exit(1)
    print("FINISHED")


if __name__ == "__main__":
    main()
