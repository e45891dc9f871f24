"""One checkpoint for several trials that are told together."""

from pathlib import Path

import pytest

import phyla
from phyla.errors import LeaseLost


def study(home: Path) -> phyla.Study:
    return phyla.Study(
        "shared",
        {"lr": phyla.Float(0.1, 1.0)},
        phyla.Maximize("score"),
        phyla.PBT(population_size=3, steps_per_trial=1, total_steps=2),
        home=home,
        storage="memory://",
        max_attempts=1,
    )


def test_it_is_kept_when_the_trial_that_wrote_it_does_not_count(tmp_path: Path) -> None:
    made = study(tmp_path)
    trials = made.ask(3)
    (trials[0].checkpoint_dir / "weights").write_text("all three")
    made.tell(trials[0:1], error="ValueError: given up meanwhile")
    (trials[0].checkpoint_dir / "weights").write_text("all three")
    with pytest.raises(LeaseLost):
        made.tell(trials, metrics=[{"score": 1.0}, {"score": 2.0}, {"score": 3.0}], checkpoint=trials[0])
    again = {trial.member: trial for trial in made.ask(3)}
    assert again[1].parent is not None
    assert (again[1].parent.path / "weights").read_text() == "all three"
