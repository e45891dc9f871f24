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
        retries=phyla.Retries(attempts=1),
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


def test_it_is_kept_when_a_rule_stops_the_trial_that_wrote_it(tmp_path: Path) -> None:
    made = phyla.Study(
        "shared",
        {"lr": phyla.Float(0.1, 1.0)},
        phyla.Maximize("score"),
        phyla.PBT(population_size=2, steps_per_trial=1, total_steps=3, quorum=0, exploit=None),
        home=tmp_path,
        storage="memory://",
        stopping=phyla.strategies.Divergence(),
    )
    repository = Path(str(made.places.checkpoints("shared")))
    trials = made.ask(2)
    (trials[0].checkpoint_dir / "weights").write_text("both")
    made.tell(trials, metrics=[{"score": float("nan")}, {"score": 2.0}], checkpoint=trials[0])
    again = {trial.member: trial for trial in made.ask(2)}
    assert again[0].parent is None
    assert again[1].parent is not None
    assert (again[1].parent.path / "weights").read_text() == "both"
    many = [again[1], again[0]]
    (many[0].checkpoint_dir / "weights").write_text("nobody's")
    made.tell(many, metrics=[{"score": float("nan")}, {"score": float("inf")}], checkpoint=many[0])
    assert not (repository / f"{many[0].id}.1").exists()
    assert (again[1].parent.path / "weights").read_text() == "both"
