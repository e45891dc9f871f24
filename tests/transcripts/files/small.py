import json

import phyla


def train(trial):
    state = json.loads((trial.source.path / "state.json").read_text()) if trial.source else {"score": 0.0}
    for _ in trial.steps():
        state["score"] += 1 - (trial.params["lr"] - 0.3) ** 2 + trial.params["momentum"] / 10
    (trial.checkpoint_dir / "state.json").write_text(json.dumps(state))
    trial.report(score=state["score"])


study = phyla.Study(
    "small",
    {"lr": phyla.Float(0.01, 1.0, log=True), "momentum": phyla.Float(0.0, 0.9)},
    phyla.Maximize("score"),
    phyla.PBT(population_size=4, steps_per_trial=5, total_steps=20),
    train,
)
