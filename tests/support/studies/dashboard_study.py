"""A study for the dashboard: small, evaluated, with a metric that tries to be HTML, and trials that fail.

While the home has a file `broken`, the second trial of the last member fails. Run as a program, with the home, the
name, and the number of workers.
"""

import json
import sys
import time
from pathlib import Path

import phyla

MARKUP = "<script>alert(1)</script>"
STEPS = 5
MEMBERS = 4
TRIALS = 3


def train(trial: phyla.Trial) -> None:
    """Climb a hill, once the file `most` in the home allows as many trials of a member."""
    home = Path(trial.working_dir).parents[2]
    while (home / "most").exists() and trial.start_step >= STEPS * int((home / "most").read_text() or 0):
        time.sleep(0.01)
    skill = json.loads((trial.source.path / "skill.json").read_text()) if trial.source else 0.0
    print(f"trial {trial.id} began with skill {skill:.3f} {MARKUP}", flush=True)
    if trial.member == MEMBERS - 1 and trial.start_step == STEPS and (home / "broken").exists():
        raise RuntimeError(f"{MARKUP} the loss of batch {trial.params['batch']} is not finite")
    skill += trial.params["lr"] * (1 - trial.params["lr"]) + trial.seed % 100 / 2000
    (trial.checkpoint_dir / "skill.json").write_text(json.dumps(skill))
    trial.report({"score": skill, MARKUP: 1.0 - skill})


@phyla.eval_task(samples=1)
def exam(evaluation: phyla.Evaluation) -> None:
    """Read the skill."""
    evaluation.record(accuracy=json.loads((evaluation.checkpoint.path / "skill.json").read_text()))


@phyla.eval_task(max_attempts=1)
def moody(evaluation: phyla.Evaluation) -> None:
    """Fail on the first checkpoints."""
    if evaluation.checkpoint.step <= STEPS:
        raise ValueError(f"{MARKUP} not today")
    evaluation.record(mood=0.5)


def study(home: Path, name: str) -> phyla.Study:
    """Return the study."""
    return phyla.Study(
        name=name,
        space=phyla.Space(lr=phyla.Float(0.01, 1.0, log=True), batch=phyla.Ordinal([16, 32, 64])),
        objective=phyla.Maximize("score"),
        strategy=phyla.PBT(
            population_size=MEMBERS,
            steps_per_trial=STEPS,
            total_steps=STEPS * TRIALS,
            exploit=phyla.Truncation(0.25),
        ),
        train=train,
        home=home,
        suites=[phyla.Suite("school", (exam, moody), objective=phyla.Maximize("accuracy_mean"))],
        retries=phyla.Retries(attempts=1, broken=3),
    )


if __name__ == "__main__":
    study(Path(sys.argv[1]), sys.argv[2]).run(workers=int(sys.argv[3]))
