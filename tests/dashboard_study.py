"""A study for the dashboard: small, evaluated, with a metric that tries to be HTML, and trials that fail.

Run as a program, with the home and the number of trials of each member.
"""

import json
import sys
from pathlib import Path

import phyla

MARKUP = "<script>alert(1)</script>"
STEPS = 5
WAITS = "wait"
"""While the home has a file of this name, trials with a parent do not begin."""


def train(trial: phyla.Trial) -> None:
    """Climb a hill; whoever is far off the good learning rate learns little."""
    home = Path(trial.working_dir).parents[2]
    skill = json.loads((trial.source.path / "skill.json").read_text()) if trial.source else 0.0
    for _ in trial.steps():
        pass
    if trial.seed % 11 == 0:
        raise RuntimeError(f"{MARKUP} the loss is not finite")
    skill += trial.params["lr"] * (1 - trial.params["lr"]) + trial.seed % 100 / 2000
    (trial.checkpoint_dir / "skill.json").write_text(json.dumps(skill))
    print(f"trial {trial.id} of {home.name} has skill {skill:.3f} {MARKUP}", flush=True)
    trial.report(**{"score": skill, MARKUP: 1.0 - skill})


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


def study(home: Path, trials: int, members: int = 6) -> phyla.Study:
    """Return the study."""
    return phyla.Study(
        name="hill",
        space=phyla.Space(lr=phyla.Float(0.01, 1.0, log=True), batch=phyla.Ordinal([16, 32, 64])),
        objective=phyla.Maximize("score"),
        strategy=phyla.PBT(
            population_size=members,
            steps_per_trial=STEPS,
            total_steps=STEPS * trials,
            exploit=phyla.Truncation(0.3),
        ),
        train=train,
        home=home,
        suites=[phyla.Suite("school", (exam, moody), objective=phyla.Maximize("accuracy_mean"))],
        retries=phyla.Retries(attempts=1, broken=3),
    )


if __name__ == "__main__":
    study(Path(sys.argv[1]), int(sys.argv[2])).run(workers=1)
