"""Of several trials with the best score, all that shows a study names the same one."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import phyla
from command_line import Phyla


@pytest.mark.parametrize(
    "score",
    [
        pytest.param(lambda step, member: 1.0, id="all equal"),
        pytest.param(lambda step, member: min(step, 6.0), id="a maximum that all reach"),
        pytest.param(lambda step, member: float(step == 4), id="equal in the middle"),
        pytest.param(lambda step, member: min(step, 6.0) - member, id="a maximum that one reaches"),
        pytest.param(lambda step, member: step + member / 10, id="no equals"),
    ],
)
def test_progress_and_the_winner_are_the_same_trial(
    score: Callable[[int, int], float], tmp_path: Path, cli: Phyla
) -> None:
    def train(trial: phyla.Trial) -> None:
        (trial.checkpoint_dir / "weights").write_text(str(trial.id))
        trial.report(score=score(trial.end_step, trial.member))

    results = phyla.Study(
        "equal",
        {"lr": phyla.Float(0.1, 1.0)},
        phyla.Maximize("score"),
        phyla.PBT(population_size=4, steps_per_trial=2, total_steps=10),
        train,
        home=tmp_path,
    ).run(workers=0)
    best = results.best
    assert best is not None
    shown = json.loads(cli("status", "equal", "--json", "--home", tmp_path))["best_score"]
    assert (shown["trial"], shown["fitness"]) == (best.trial, best.fitness)
    assert shown["step"] == (4 if score(4, 0) > score(10, 0) else 10)
