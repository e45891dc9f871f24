"""A process that is attached to a study. Options come as JSON in the first argument.

home, how (trials or poll), sleep_s per step, said: a file that gets a line for each step that is trained.
"""

import json
import sys
import time
from pathlib import Path

import phyla
from phyla.study.attached.member import AttachedMember

OPTIONS = json.loads(sys.argv[1]) if __name__ == "__main__" else {}


def make(home: str | Path, **settings: object) -> phyla.Study:
    """Return the study that every process is attached to."""
    strategy = phyla.PBT(population_size=2, steps_per_trial=5, total_steps=15, quorum=1.0)
    space = {"lr": phyla.Float(1e-3, 0.5, log=True)}
    return phyla.Study("attached", space, phyla.Minimize("loss"), strategy, home=home, **settings)  # type: ignore[arg-type]


def loaded(path: Path | None) -> float:
    """Return the weights of a checkpoint, or fresh ones."""
    return 0.0 if path is None else float((path / "w.txt").read_text())


def stepped(w: float, lr: float) -> float:
    """Train one step."""
    return w - lr * 2 * (w - 3)


def train(trial: phyla.Trial) -> None:
    """Train a trial, in a loop of one's own or as a training function."""
    w = loaded(trial.source.path if trial.source else None)
    for step in trial.steps():
        w = stepped(w, trial.params["lr"])
        said(f"{trial.member} {step + 1}")
    (trial.checkpoint_dir / "w.txt").write_text(repr(w))
    trial.report(loss=(w - 3) ** 2)


def said(line: str) -> None:
    """Say what was trained, and take some time."""
    if "said" in OPTIONS:
        with open(OPTIONS["said"], "a") as file:
            file.write(f"{line}\n")
    time.sleep(OPTIONS.get("sleep_s", 0))


def polled(member: AttachedMember) -> None:
    """Train on and on, and ask at each step."""
    step, w = 0, 0.0
    while True:
        answer = member.poll(
            step,
            checkpoint=lambda folder: (folder / "w.txt").write_text(repr(w)),  # noqa: B023  # called at once
            metrics={"loss": (w - 3) ** 2},
        )
        if answer.stop:
            return
        if answer.load or answer.fresh:
            w = loaded(answer.load)
        w, step = stepped(w, answer.params["lr"]), answer.step + 1
        said(f"{answer.member} {step}")


def main() -> None:
    """Work on the study until it ends."""
    with phyla.attach(make(OPTIONS["home"]), lease_s=OPTIONS.get("lease_s", 60.0)) as job:
        if OPTIONS["how"] == "poll":
            polled(job.member())
        else:
            for trial in job.trials():
                train(trial)


if __name__ == "__main__":
    main()
